/* A backup file: an option byte, the header's fields without the zeros behind them, and what
 * follows the header's page. With SEAL the checksums are put right first, so that what stands
 * behind them is reached. An opened backup's granules lie one behind the other up to its end, and
 * each is read. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "fuzz.h"
#include "quant/backup_file.h"

#define FIELDS_BYTES offsetof(struct backup_header, reserved)
#define SEAL         1u
#define READ_MAX     ((int64_t)1 << 20) /* content of granules that are read */
#define READ_COUNT   4

static void seal(struct backup_header *header, const uint8_t *rest, size_t bytes)
{
    uint64_t index_bytes = header->data_offset - BACKUP_PAGE;
    if ((header->flags & BACKUP_ZSTD) != 0 && index_bytes <= bytes)
        header->index_checksum = XXH3_64bits(rest, (size_t)index_bytes);
    header->checksum = backup_header_checksum(header);
}

static void check_granule(const struct backup *backup, int64_t number, bool is_sealed)
{
    const struct backup_form *form = backup_form(backup);
    const void *content;
    struct error err;
    char *bytes = memory_alloc_raw((size_t)backup_granule_bytes(backup, number), 1);
    char *scratch = memory_alloc_raw((size_t)form->content_bytes, 1);
    FUZZ_CHECK(bytes != NULL && scratch != NULL);
    enum status status = backup_granule_read(&content, backup, number, bytes, scratch, &err);
    if (status != STATUS_OK && is_sealed) {
        int64_t stored = backup_granule_stored(backup, number);
        uint64_t checksum = backup_granule_checksum(form, number, bytes, stored);
        memcpy(bytes + stored + offsetof(struct backup_trailer, checksum), &checksum,
               sizeof checksum);
        status = backup_granule_check(&content, backup, number, bytes, scratch, &err);
    }
    if (status != STATUS_OK) {
        fuzz_check_error(status, &err);
    } else {
        struct matrix matrix = backup_granule_matrix(form, content, BACKUP_DOWN);
        uint16_t *values =
            memory_alloc_raw((size_t)packed_bytes(matrix.rows, matrix.columns, DTYPE_BF16), 1);
        FUZZ_CHECK(values != NULL);
        backup_granule_dequantize(values, form, content, BACKUP_DOWN);
        memory_free(values);
    }
    memory_free(bytes);
    memory_free(scratch);
}

static void check_backup(const struct backup *backup, bool is_sealed)
{
    const struct backup_form *form = backup_form(backup);
    uint64_t at = (uint64_t)form->data_offset;
    for (int64_t i = 0; i < form->granule_count; i++) {
        FUZZ_CHECK(backup_granule_offset(backup, i) == at);
        FUZZ_CHECK(backup_granule_bytes(backup, i) > 0);
        FUZZ_CHECK(backup_granule_bytes(backup, i) <= backup_granule_bytes_max(backup));
        at += (uint64_t)backup_granule_bytes(backup, i);
    }
    FUZZ_CHECK(at == backup_file_bytes(backup));
    for (int64_t i = 0; i < form->granule_count && i < READ_COUNT; i++) {
        if (form->content_bytes <= READ_MAX)
            check_granule(backup, i, is_sealed);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct backup_header header = {.version = 0};
    struct backup *backup;
    struct error err;
    uint8_t options = size > 0 ? data[0] : 0;
    size_t fields = size <= 1 ? 0 : size - 1 < FIELDS_BYTES ? size - 1 : FIELDS_BYTES;
    size_t rest = size - (size > 0) - fields;
    struct fuzz_account account = fuzz_begin(size);
    if (fields > 0)
        memcpy(&header, data + 1, fields);
    if ((options & SEAL) != 0)
        seal(&header, data + 1 + fields, rest);
    uint8_t *file = malloc(sizeof header + rest);
    FUZZ_CHECK(file != NULL);
    memcpy(file, &header, sizeof header);
    if (rest > 0)
        memcpy(file + sizeof header, data + 1 + fields, rest);
    int fd = fuzz_file(file, sizeof header + rest);
    struct fuzz_path path = fuzz_file_path(fd);
    enum status status = backup_open(&backup, path.text, &err);
    if (status == STATUS_OK)
        check_backup(backup, (options & SEAL) != 0);
    else
        fuzz_check_error(status, &err);
    if (status == STATUS_OK)
        backup_close(backup);
    close(fd);
    free(file);
    fuzz_end(&account);
    return 0;
}
