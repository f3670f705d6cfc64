#include "quant/backup_format.h"

#include <string.h>
#include <xxhash.h>
#include <zstd.h>

#include "base/random.h"
#include "layout/packing.h"

const char *const backup_scheme_names[BACKUP_SCHEME_COUNT] = {"group", "channel", "tensor"};

/* ---- From the sizes ------------------------------------------------------------------------ */

/* The numbers are positive and within the limits, so that no product here leaves 63 bits. */
static void derive(struct backup_form *form)
{
    int64_t hidden = form->hidden_dim;
    form->parts = layout_granule_count(form->expert_dim);
    ASSERT(form->parts <= BACKUP_PARTS_MAX);
    form->granule_width = form->expert_dim / form->parts;
    form->granule_count = form->moe_layer_count * form->expert_count * form->parts;
    form->nibble_bytes = packed_bytes(form->granule_width, hidden, DTYPE_INT4);
    form->scale_bytes =
        packed_scale_count(PACK_OUTPUT, form->granule_width, hidden, form->settings.group) *
        (int64_t)sizeof(uint16_t);
    int64_t scale_arrays = form->settings.is_asymmetric ? 2 : 1;
    form->content_bytes = BACKUP_MATRICES * (form->nibble_bytes + scale_arrays * form->scale_bytes);
    int64_t entries = form->settings.has_zstd ? form->granule_count : 0;
    form->index_bytes = round_up(entries * (int64_t)sizeof(struct backup_entry), BACKUP_PAGE);
    form->data_offset = BACKUP_PAGE + form->index_bytes;
}

static bool is_dim(int64_t dim)
{
    return dim >= PACK_BLOCK && dim <= BACKUP_DIM_MAX && dim % PACK_BLOCK == 0;
}

static enum status check_sizes(const struct backup_form *form, const char *what, struct error *err)
{
    if (!is_dim(form->hidden_dim) || !is_dim(form->expert_dim))
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s: experts of %lld x %lld cannot be stored in INT4: both must be "
                         "multiples of %d, up to %lld",
                         what, (long long)form->expert_dim, (long long)form->hidden_dim, PACK_BLOCK,
                         (long long)BACKUP_DIM_MAX);
    return STATUS_OK;
}

static enum status check_content(const struct backup_form *form, const char *what,
                                 struct error *err)
{
    if (form->content_bytes <= BACKUP_CONTENT_MAX)
        return STATUS_OK;
    return error_set(
        err, STATUS_UNSUPPORTED,
        "%s: a granule of an expert of %lld x %lld would have %lld bytes; the limit is "
        "%lld",
        what, (long long)form->expert_dim, (long long)form->hidden_dim,
        (long long)form->content_bytes, (long long)BACKUP_CONTENT_MAX);
}

/* Of a channel and of a tensor it is the whole row. */
static int64_t group_of(const struct backup_settings *settings, int64_t hidden_dim)
{
    return settings->scheme == BACKUP_PER_GROUP ? settings->group : hidden_dim;
}

struct expert_type backup_expert_type(const struct backup_settings *settings, int64_t hidden_dim)
{
    return (struct expert_type){.dtype = DTYPE_INT4,
                                .group = group_of(settings, hidden_dim),
                                .has_minima = settings->is_asymmetric};
}

enum status backup_form_make(struct backup_form *out, const struct backup_settings *settings,
                             const struct model_config *config,
                             const struct fingerprint *fingerprint, struct error *err)
{
    struct backup_form form = {.settings = *settings,
                               .fingerprint = *fingerprint,
                               .hidden_dim = config->hidden_dim,
                               .expert_dim = config->expert_dim,
                               .expert_count = config->expert_count,
                               .layer_count = config->layer_count};
    for (int64_t layer = 0; layer < config->layer_count; layer++)
        form.moe_layer_count += config->layers[layer].ffn == FFN_MOE;
    TRY(check_sizes(&form, "this model", err));
    form.settings.group = group_of(settings, form.hidden_dim);
    if (!is_dim(form.settings.group))
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "--group: expected a multiple of %d, found %lld", PACK_BLOCK,
                         (long long)settings->group);
    derive(&form);
    TRY(check_content(&form, "this model", err));
    *out = form;
    return STATUS_OK;
}

bool backup_form_is_same(const struct backup_form *a, const struct backup_form *b)
{
    struct backup_header of_a, of_b;
    backup_header_write(&of_a, a, false, 0, 0);
    backup_header_write(&of_b, b, false, 0, 0);
    return memcmp(&of_a, &of_b, sizeof of_a) == 0;
}

/* ---- The header ---------------------------------------------------------------------------- */

uint64_t backup_header_checksum(const struct backup_header *header)
{
    return XXH3_64bits(header, offsetof(struct backup_header, checksum));
}

void backup_header_write(struct backup_header *out, const struct backup_form *form,
                         bool is_complete, uint64_t file_bytes, uint64_t index_checksum)
{
    *out = (struct backup_header){
        .magic = BACKUP_MAGIC,
        .version = BACKUP_VERSION,
        .is_complete = is_complete,
        .fingerprint = {form->fingerprint.low, form->fingerprint.high},
        .scheme = form->settings.scheme,
        .flags = (form->settings.is_asymmetric ? BACKUP_ASYMMETRIC : 0) |
                 (form->settings.has_zstd ? BACKUP_ZSTD : 0),
        .group = (uint64_t)form->settings.group,
        .hidden_dim = (uint64_t)form->hidden_dim,
        .expert_dim = (uint64_t)form->expert_dim,
        .expert_count = (uint64_t)form->expert_count,
        .layer_count = (uint64_t)form->layer_count,
        .moe_layer_count = (uint64_t)form->moe_layer_count,
        .granule_count = (uint64_t)form->granule_count,
        .content_bytes = (uint64_t)form->content_bytes,
        .data_offset = (uint64_t)form->data_offset,
        .file_bytes = is_complete ? file_bytes : 0,
        .index_checksum = is_complete ? index_checksum : 0,
    };
    out->checksum = backup_header_checksum(out);
}

static enum status bad(const char *path, const char *field, uint64_t found, struct error *err)
{
    return error_set(err, STATUS_FORMAT, "%s: the header's %s cannot be %llu", path, field,
                     (unsigned long long)found);
}

/* Numbers within their bounds, none computed with before. */
static enum status check_fields(const struct backup_header *header, const char *path,
                                struct error *err)
{
    const struct {
        const char *name;
        uint64_t value, least, most, unit;
    } fields[] = {
        {"group size", header->group, PACK_BLOCK, BACKUP_DIM_MAX, PACK_BLOCK},
        {"hidden size", header->hidden_dim, PACK_BLOCK, BACKUP_DIM_MAX, PACK_BLOCK},
        {"expert width", header->expert_dim, PACK_BLOCK, BACKUP_DIM_MAX, PACK_BLOCK},
        {"number of experts", header->expert_count, 1, MODEL_EXPERTS_MAX, 1},
        {"number of layers", header->layer_count, 1, MODEL_LAYERS_MAX, 1},
        {"number of layers with experts", header->moe_layer_count, 0, header->layer_count, 1},
        {"mark of completion", header->is_complete, 0, 1, 1},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (fields[i].value < fields[i].least || fields[i].value > fields[i].most ||
            fields[i].value % fields[i].unit != 0)
            return bad(path, fields[i].name, fields[i].value, err);
    }
    for (size_t i = 0; i < sizeof header->reserved; i++) {
        if (header->reserved[i] != 0)
            return bad(path, "reserved bytes", header->reserved[i], err);
    }
    return STATUS_OK;
}

/* That it is a backup's header at all, of this version, and undamaged. */
static enum status check_kind(const struct backup_header *header, const char *path,
                              struct error *err)
{
    if (memcmp(header->magic, BACKUP_MAGIC, sizeof header->magic) != 0)
        return error_set(err, STATUS_FORMAT, "%s is no INT4 backup of phasor's", path);
    if (header->version != BACKUP_VERSION)
        return error_set(err, STATUS_UNSUPPORTED,
                         "%s is an INT4 backup of version %u; this phasor reads version %d: make "
                         "it anew with phasor quantize --overwrite",
                         path, header->version, BACKUP_VERSION);
    if (header->checksum != backup_header_checksum(header))
        return error_set(err, STATUS_FORMAT,
                         "%s: the header is damaged (its checksum does not hold); make the backup "
                         "anew with phasor quantize --overwrite",
                         path);
    if (header->scheme >= BACKUP_SCHEME_COUNT ||
        (header->flags & ~(BACKUP_ASYMMETRIC | BACKUP_ZSTD)) != 0)
        return error_set(err, STATUS_UNSUPPORTED, "%s: scheme %u with flags %u is not known", path,
                         header->scheme, header->flags);
    return STATUS_OK;
}

enum status backup_header_read(struct backup_form *out, const struct backup_header *header,
                               const char *path, struct error *err)
{
    TRY(check_kind(header, path, err));
    TRY(check_fields(header, path, err));
    struct backup_form form = {
        .settings = {.scheme = (enum backup_scheme)header->scheme,
                     .is_asymmetric = (header->flags & BACKUP_ASYMMETRIC) != 0,
                     .has_zstd = (header->flags & BACKUP_ZSTD) != 0,
                     .group = (int64_t)header->group},
        .fingerprint = {.low = header->fingerprint[0], .high = header->fingerprint[1]},
        .hidden_dim = (int64_t)header->hidden_dim,
        .expert_dim = (int64_t)header->expert_dim,
        .expert_count = (int64_t)header->expert_count,
        .layer_count = (int64_t)header->layer_count,
        .moe_layer_count = (int64_t)header->moe_layer_count,
    };
    if (form.settings.group != group_of(&form.settings, form.hidden_dim))
        return bad(path, "group size", header->group, err);
    derive(&form);
    TRY(check_content(&form, path, err));
    if (header->granule_count != (uint64_t)form.granule_count)
        return bad(path, "number of granules", header->granule_count, err);
    if (header->content_bytes != (uint64_t)form.content_bytes)
        return bad(path, "size of a granule", header->content_bytes, err);
    if (header->data_offset != (uint64_t)form.data_offset)
        return bad(path, "place of the first granule", header->data_offset, err);
    *out = form;
    return STATUS_OK;
}

/* ---- A granule ----------------------------------------------------------------------------- */

struct range backup_nibbles(const struct backup_form *form, enum backup_matrix matrix)
{
    return (struct range){matrix * form->nibble_bytes, form->nibble_bytes};
}

struct range backup_scales(const struct backup_form *form, enum backup_matrix matrix)
{
    int64_t first = BACKUP_MATRICES * form->nibble_bytes;
    return (struct range){first + matrix * form->scale_bytes, form->scale_bytes};
}

struct range backup_minima(const struct backup_form *form, enum backup_matrix matrix)
{
    struct range scales = backup_scales(form, matrix);
    if (!form->settings.is_asymmetric)
        return (struct range){0, 0};
    return (struct range){scales.first + BACKUP_MATRICES * form->scale_bytes, form->scale_bytes};
}

struct matrix backup_granule_matrix(const struct backup_form *form, const void *content,
                                    enum backup_matrix matrix)
{
    const char *bytes = content;
    bool is_down = matrix == BACKUP_DOWN;
    struct range minima = backup_minima(form, matrix);
    return (struct matrix){
        .data = bytes + backup_nibbles(form, matrix).first,
        .dtype = DTYPE_INT4,
        .packing = is_down ? PACK_INPUT : PACK_OUTPUT,
        .rows = is_down ? form->hidden_dim : form->granule_width,
        .columns = is_down ? form->granule_width : form->hidden_dim,
        .scales = (const void *)(bytes + backup_scales(form, matrix).first),
        .minima = minima.count == 0 ? NULL : (const void *)(bytes + minima.first),
        .group = form->settings.group,
    };
}

void backup_granule_dequantize(uint16_t *out, const struct backup_form *form, const void *content,
                               enum backup_matrix which)
{
    struct matrix matrix = backup_granule_matrix(form, content, which);
    const uint8_t *nibbles = matrix.data;
    for (int64_t row = 0; row < matrix.rows; row++) {
        for (int64_t column = 0; column < matrix.columns; column++) {
            int64_t from =
                packed_index(matrix.packing, DTYPE_INT4, matrix.rows, matrix.columns, row, column);
            int64_t group = packed_scale_index(&matrix, row, column);
            float scale = bf16_to_f32(matrix.scales[group]);
            float minimum = matrix.minima == NULL ? -8 * scale : bf16_to_f32(matrix.minima[group]);
            float nibble = (float)(nibbles[from / 2] >> from % 2 * 4 & 15);
            int64_t to =
                packed_index(matrix.packing, DTYPE_BF16, matrix.rows, matrix.columns, row, column);
            out[to] = bf16_from_f32(scale * nibble + minimum);
        }
    }
}

int64_t backup_granule_span(int64_t stored_bytes)
{
    return round_up(stored_bytes + (int64_t)sizeof(struct backup_trailer), BACKUP_PAGE);
}

int64_t backup_granule_span_max(const struct backup_form *form)
{
    int64_t content = form->content_bytes;
    return backup_granule_span(
        form->settings.has_zstd ? (int64_t)ZSTD_COMPRESSBOUND((uint64_t)content) : content);
}

uint64_t backup_granule_checksum(const struct backup_form *form, int64_t number, const void *stored,
                                 int64_t stored_bytes)
{
    uint64_t seed = random_at(form->fingerprint.low, form->fingerprint.high, (uint64_t)number);
    size_t bytes = (size_t)stored_bytes + offsetof(struct backup_trailer, checksum);
    return XXH3_64bits_withSeed(stored, bytes, seed);
}
