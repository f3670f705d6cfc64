/* The numbers of a backup file: places, and headers that do not hang together. */
#include <criterion/criterion.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "backup_tools.h"
#include "base/memory.h"

static struct backup_header header_of(struct backup_settings settings)
{
    struct model_config *config = memory_alloc(1, sizeof *config);
    *config = (struct model_config){
        .hidden_dim = 128, .expert_dim = 1408, .expert_count = 4, .layer_count = 3};
    config->layers[0].ffn = config->layers[2].ffn = FFN_MOE;
    struct fingerprint fingerprint = {.high = 1, .low = 2};
    struct backup_form form;
    struct error err;
    struct backup_header header;
    cr_assert_eq(backup_form_make(&form, &settings, config, &fingerprint, &err), STATUS_OK);
    backup_header_write(&header, &form, true, 12345, settings.has_zstd ? 7 : 0);
    memory_free(config);
    return header;
}

static struct backup_header good(bool zstd)
{
    return header_of((struct backup_settings){.group = 48, .has_zstd = zstd});
}

/* Worked out by hand from docs/backup-format.md: 1408 = 8 x 176; 128 weights are 3 groups of 48. */
Test(backup_format, places_are_those_of_the_document)
{
    struct backup_form form;
    struct error err;
    struct backup_header header = good(false);
    cr_assert_eq(backup_header_read(&form, &header, "f", &err), STATUS_OK);
    cr_assert_eq(form.moe_layer_count, 2);
    cr_assert_eq(form.parts, 8);
    cr_assert_eq(form.granule_width, 176);
    cr_assert_eq(form.granule_count, 2 * 4 * 8);
    cr_assert_eq(form.nibble_bytes, 176 * 128 / 2);
    cr_assert_eq(form.scale_bytes, 176 * 3 * 2);
    cr_assert_eq(form.content_bytes, 3 * (11264 + 1056));
    cr_assert_eq(form.data_offset, 4096);
    cr_assert_eq(backup_granule_span(form.content_bytes), 40960); /* 36960 + 80, in pages */
    cr_assert_eq(backup_granule(&form, 1, 2, 3), (4 + 2) * 8 + 3);
    cr_assert_eq(backup_nibbles(&form, BACKUP_DOWN).first, 2 * 11264);
    cr_assert_eq(backup_scales(&form, BACKUP_GATE).first, 3 * 11264);
    cr_assert_eq(backup_scales(&form, BACKUP_UP).first, 3 * 11264 + 1056);
    cr_assert_eq(backup_minima(&form, BACKUP_UP).count, 0);
    header = good(true);
    cr_assert_eq(backup_header_read(&form, &header, "f", &err), STATUS_OK);
    cr_assert_eq(form.data_offset, 2 * 4096); /* 64 entries of 16 */
    header.flags |= BACKUP_ASYMMETRIC;
    header.content_bytes += 3 * 1056;
    header.checksum = backup_header_checksum(&header);
    cr_assert_eq(backup_header_read(&form, &header, "f", &err), STATUS_OK);
    cr_assert_eq(backup_minima(&form, BACKUP_UP).first, 3 * (11264 + 1056) + 1056);
}

/* Of a channel and of a tensor the group is the whole row, whatever the settings say. */
Test(backup_format, groups_of_channels_and_tensors_are_rows)
{
    for (int scheme = BACKUP_PER_CHANNEL; scheme <= BACKUP_PER_TENSOR; scheme++) {
        struct backup_form form;
        struct error err;
        struct backup_header header =
            header_of((struct backup_settings){.scheme = (enum backup_scheme)scheme, .group = 48});
        cr_assert_eq(header.group, 128);
        cr_assert_eq(backup_header_read(&form, &header, "f", &err), STATUS_OK, "%s", err.message);
        cr_assert_eq(form.settings.group, 128);
        cr_assert_eq(form.scale_bytes, 176 * 2);
    }
}

#define FIELD(member)                                                                              \
#member, offsetof(struct backup_header, member), sizeof((struct backup_header *)0)->member

static const struct {
    const char *name;
    size_t offset, bytes;
    uint64_t value;
    enum status status;
    const char *fragments;
} wrong[] = {
    {FIELD(version), 2, STATUS_UNSUPPORTED, "version 2|phasor quantize --overwrite"},
    {FIELD(version), 0, STATUS_UNSUPPORTED, "version 0"},
    {FIELD(is_complete), 2, STATUS_FORMAT, "mark of completion"},
    {FIELD(scheme), 3, STATUS_UNSUPPORTED, "scheme 3"},
    {FIELD(flags), 4, STATUS_UNSUPPORTED, "flags 4"},
    {FIELD(group), 0, STATUS_FORMAT, "group size|0"},
    {FIELD(group), 40, STATUS_FORMAT, "group size|40"},
    {FIELD(group), UINT64_MAX - 15, STATUS_FORMAT, "group size"},
    {FIELD(group), 64, STATUS_FORMAT, "size of a granule"},
    {FIELD(scheme), BACKUP_PER_CHANNEL, STATUS_FORMAT, "group size|48"},
    {FIELD(scheme), BACKUP_PER_TENSOR, STATUS_FORMAT, "group size|48"},
    {FIELD(hidden_dim), 0, STATUS_FORMAT, "hidden size"},
    {FIELD(hidden_dim), 120, STATUS_FORMAT, "hidden size"},
    {FIELD(hidden_dim), (uint64_t)1 << 40, STATUS_FORMAT, "hidden size"},
    {FIELD(hidden_dim), (uint64_t)1 << 24, STATUS_UNSUPPORTED, "limit"},
    {FIELD(expert_dim), 8, STATUS_FORMAT, "expert width"},
    {FIELD(expert_dim), UINT64_MAX, STATUS_FORMAT, "expert width"},
    {FIELD(expert_count), 0, STATUS_FORMAT, "number of experts"},
    {FIELD(expert_count), 4097, STATUS_FORMAT, "number of experts"},
    {FIELD(layer_count), 1025, STATUS_FORMAT, "number of layers"},
    {FIELD(layer_count), 1, STATUS_FORMAT, "layers with experts"},
    {FIELD(moe_layer_count), 4, STATUS_FORMAT, "layers with experts"},
    {FIELD(moe_layer_count), 3, STATUS_FORMAT, "number of granules"},
    {FIELD(granule_count), 65, STATUS_FORMAT, "number of granules|65"},
    {FIELD(content_bytes), 1, STATUS_FORMAT, "size of a granule"},
    {FIELD(data_offset), 8192, STATUS_FORMAT, "first granule"},
    {"reserved", 4000, 1, 1, STATUS_FORMAT, "reserved"},
};

Test(backup_format, headers_that_do_not_hang_together_are_refused)
{
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct error err;
        struct backup_form form;
        struct backup_header header = good(false);
        memcpy((char *)&header + wrong[i].offset, &wrong[i].value, wrong[i].bytes);
        header.checksum = backup_header_checksum(&header);
        expect_failure(wrong[i].name, backup_header_read(&form, &header, "f", &err), &err,
                       wrong[i].status, wrong[i].fragments);
    }
}

Test(backup_format, every_altered_byte_of_a_header_is_found)
{
    struct error err;
    struct backup_form form;
    for (size_t i = 0; i < sizeof(struct backup_header); i++) {
        struct backup_header header = good(false);
        ((unsigned char *)&header)[i] ^= 0x40;
        cr_assert_neq(backup_header_read(&form, &header, "f", &err), STATUS_OK, "byte %zu", i);
    }
}

/* Files of a wrong size, and wrong indexes whose checksum holds. */
Test(backup_format, wrong_files_are_refused)
{
    static const struct {
        const char *name;
        int64_t entry; /* -1: none is changed */
        uint64_t offset_more, stored_more;
        int64_t cut; /* bytes fewer (or more) in the file */
        const char *fragments;
    } cases[] = {
        {"shorter", -1, 0, 0, 4096, "cut or is damaged"},
        {"longer", -1, 0, 0, -1, "cut or is damaged"},
        {"overlap", 1, (uint64_t)-4096, 0, 0, "granule 1"},
        {"hole", 3, 4096, 0, 0, "granule 3"},
        {"not a page", 0, 1, 0, 0, "granule 0"},
        {"too long", 2, 0, (uint64_t)1 << 40, 0, "granule 2"},
        {"2^64", 2, 0, UINT64_MAX / 2 + 1, 0, "granule 2"},
    };
    struct bench bench;
    bench_init(&bench, "tiny-mixtral", 1, false);
    struct backup_write_params params = bench_params(&bench);
    params.settings.has_zstd = true;
    bench_write(&bench, &params);
    size_t length;
    char *bytes = bench_bytes(&bench, &length);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct error err;
        struct backup *backup;
        struct backup_header header;
        char *copy = calloc(1, length + 1);
        memcpy(copy, bytes, length);
        memcpy(&header, copy, sizeof header);
        struct backup_entry *entries = (struct backup_entry *)(void *)(copy + BACKUP_PAGE);
        if (cases[c].entry >= 0) {
            entries[cases[c].entry].offset += cases[c].offset_more;
            entries[cases[c].entry].stored_bytes += cases[c].stored_more;
        }
        header.index_checksum = XXH3_64bits(entries, (size_t)(header.data_offset - BACKUP_PAGE));
        header.checksum = backup_header_checksum(&header);
        memcpy(copy, &header, sizeof header);
        file_write(bench.path, copy, (size_t)((int64_t)length - cases[c].cut));
        expect_failure(cases[c].name, backup_open(&backup, bench.path, &err), &err, STATUS_FORMAT,
                       cases[c].fragments);
        free(copy);
    }
    free(bytes);
    bench_deinit(&bench);
}

Test(backup_format, what_is_no_backup_is_refused)
{
    struct error err;
    struct backup *backup;
    char *folder = temp_dir_make();
    const char *path = path_of(folder, "f");
    expect_failure("none", backup_open(&backup, path, &err), &err, STATUS_NOT_FOUND, "/f");
    expect_failure("folder", backup_open(&backup, folder, &err), &err, STATUS_FORMAT,
                   "not a regular file");
    file_write_text(path, "");
    expect_failure("empty", backup_open(&backup, path, &err), &err, STATUS_FORMAT, "0 bytes");
    struct backup_header header = good(false);
    header.is_complete = 0;
    header.checksum = backup_header_checksum(&header);
    file_write(path, &header, sizeof header);
    expect_failure("unfinished", backup_open(&backup, path, &err), &err, STATUS_FORMAT,
                   "not finished");
    memset(&header, 0, sizeof header);
    file_write(path, &header, sizeof header);
    expect_failure("zeros", backup_open(&backup, path, &err), &err, STATUS_FORMAT,
                   "no INT4 backup");
    temp_dir_remove(folder);
}
