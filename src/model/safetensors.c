#include "model/safetensors.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/checked.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/text.h"
#include "model/safetensors_scan.h"

#define LENGTH_BYTES  8
#define METADATA_NAME "__metadata__"

/* All types of the format, with their size in bits. */
static const struct {
    const char *text;
    int bits;
    enum tensor_dtype dtype;
} dtypes[] = {
    {"F32", 32, TENSOR_F32},      {"BF16", 16, TENSOR_BF16},    {"F16", 16, TENSOR_F16},
    {"F64", 64, TENSOR_OTHER},    {"I64", 64, TENSOR_OTHER},    {"I32", 32, TENSOR_OTHER},
    {"I16", 16, TENSOR_OTHER},    {"I8", 8, TENSOR_OTHER},      {"U64", 64, TENSOR_OTHER},
    {"U32", 32, TENSOR_OTHER},    {"U16", 16, TENSOR_OTHER},    {"U8", 8, TENSOR_OTHER},
    {"BOOL", 8, TENSOR_OTHER},    {"C64", 64, TENSOR_OTHER},    {"F8_E4M3", 8, TENSOR_OTHER},
    {"F8_E5M2", 8, TENSOR_OTHER}, {"F8_E8M0", 8, TENSOR_OTHER}, {"F6_E2M3", 6, TENSOR_OTHER},
    {"F6_E3M2", 6, TENSOR_OTHER}, {"F4", 4, TENSOR_OTHER},
};

enum field { FIELD_DTYPE, FIELD_SHAPE, FIELD_OFFSETS, FIELD_COUNT };
static const char *const field_names[FIELD_COUNT] = {"dtype", "shape", "data_offsets"};

/* What the header is measured against. */
struct layout {
    uint64_t data_offset; /* of the first byte of data in the file */
    uint64_t data_bytes;
};

static enum status read_dtype(struct tensor_info *tensor, int *bits, struct scan *scan,
                              struct scan_string name)
{
    struct scan_string text;
    TRY(scan_string(&text, scan));
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (scan_equals(text, dtypes[i].text)) {
            tensor->dtype = dtypes[i].dtype;
            tensor->dtype_text = dtypes[i].text;
            *bits = dtypes[i].bits;
            return STATUS_OK;
        }
    }
    return error_set(scan->err, STATUS_UNSUPPORTED, "%s: tensor \"%.*s\": unknown dtype \"%.*s\"",
                     scan->name, SCAN_SHOWN(name), SCAN_SHOWN(text));
}

static enum status read_shape(struct tensor_info *tensor, struct scan *scan,
                              struct scan_string name)
{
    TRY(scan_expect(scan, '['));
    tensor->rank = 0;
    while (scan_peek(scan) != ']') {
        uint64_t size;
        if (tensor->rank > 0)
            TRY(scan_expect(scan, ','));
        TRY(scan_count(&size, scan, name, "shape"));
        if (size > INT64_MAX)
            return error_set(scan->err, STATUS_FORMAT, "%s: tensor \"%.*s\": shape overflow",
                             scan->name, SCAN_SHOWN(name));
        if (tensor->rank == TENSOR_RANK_MAX)
            return error_set(scan->err, STATUS_LIMIT,
                             "%s: tensor \"%.*s\": \"shape\" has more than %d dimensions",
                             scan->name, SCAN_SHOWN(name), TENSOR_RANK_MAX);
        tensor->shape[tensor->rank++] = (int64_t)size;
    }
    return scan_expect(scan, ']');
}

static enum status read_offsets(struct tensor_info *tensor, struct scan *scan,
                                struct scan_string name, const struct layout *layout)
{
    uint64_t begin, end;
    TRY(scan_expect(scan, '['));
    TRY(scan_count(&begin, scan, name, "data_offsets"));
    TRY(scan_expect(scan, ','));
    TRY(scan_count(&end, scan, name, "data_offsets"));
    if (scan_peek(scan) == ',')
        return error_set(scan->err, STATUS_FORMAT,
                         "%s: tensor \"%.*s\": \"data_offsets\": expected two entries", scan->name,
                         SCAN_SHOWN(name));
    TRY(scan_expect(scan, ']'));
    if (begin > end)
        return error_set(scan->err, STATUS_FORMAT,
                         "%s: tensor \"%.*s\": \"data_offsets\" begin at %llu and end at %llu",
                         scan->name, SCAN_SHOWN(name), (unsigned long long)begin,
                         (unsigned long long)end);
    if (end > layout->data_bytes)
        return error_set(scan->err, STATUS_FORMAT,
                         "%s: tensor \"%.*s\" ends at byte %llu of the data, past the end of the "
                         "file (%llu bytes of data); the file was cut or the header is wrong",
                         scan->name, SCAN_SHOWN(name), (unsigned long long)end,
                         (unsigned long long)layout->data_bytes);
    tensor->offset = layout->data_offset + begin; /* cannot wrap: end <= data_bytes */
    tensor->bytes = end - begin;
    return STATUS_OK;
}

static enum status read_field(struct tensor_info *tensor, int *bits, unsigned *seen,
                              struct scan *scan, struct scan_string name,
                              const struct layout *layout)
{
    struct scan_string key;
    TRY(scan_string(&key, scan));
    TRY(scan_expect(scan, ':'));
    for (unsigned field = 0; field < FIELD_COUNT; field++) {
        if (!scan_equals(key, field_names[field]))
            continue;
        if (*seen & 1u << field)
            return error_set(scan->err, STATUS_FORMAT, "%s: tensor \"%.*s\": \"%s\" stands twice",
                             scan->name, SCAN_SHOWN(name), field_names[field]);
        *seen |= 1u << field;
        if (field == FIELD_DTYPE)
            return read_dtype(tensor, bits, scan, name);
        if (field == FIELD_SHAPE)
            return read_shape(tensor, scan, name);
        return read_offsets(tensor, scan, name, layout);
    }
    return error_set(scan->err, STATUS_FORMAT, "%s: tensor \"%.*s\": unknown field \"%.*s\"",
                     scan->name, SCAN_SHOWN(name), SCAN_SHOWN(key));
}

static enum status check_bytes(const struct tensor_info *tensor, int bits, struct scan *scan,
                               struct scan_string name)
{
    uint64_t wanted = (uint64_t)bits;
    bool fits = true;
    for (int i = 0; i < tensor->rank && fits; i++)
        fits = checked_mul(&wanted, wanted, (uint64_t)tensor->shape[i]);
    if (!fits)
        return error_set(scan->err, STATUS_FORMAT,
                         "%s: tensor \"%.*s\": shape overflow: its size does not fit 64 bits",
                         scan->name, SCAN_SHOWN(name));
    if (wanted % 8 != 0 || wanted / 8 != tensor->bytes)
        return error_set(scan->err, STATUS_FORMAT,
                         "%s: tensor \"%.*s\": \"shape\" and \"dtype\" %s need %llu bytes, but "
                         "\"data_offsets\" span %llu",
                         scan->name, SCAN_SHOWN(name), tensor->dtype_text,
                         (unsigned long long)(wanted / 8 + (wanted % 8 != 0)),
                         (unsigned long long)tensor->bytes);
    return STATUS_OK;
}

static enum status read_tensor(struct tensor_info *tensor, struct scan *scan,
                               struct scan_string name, const struct layout *layout)
{
    unsigned seen = 0;
    int bits = 0;
    memset(tensor, 0, sizeof *tensor);
    TRY(scan_expect(scan, '{'));
    while (scan_peek(scan) != '}') {
        if (seen != 0)
            TRY(scan_expect(scan, ','));
        TRY(read_field(tensor, &bits, &seen, scan, name, layout));
    }
    TRY(scan_expect(scan, '}'));
    for (unsigned field = 0; field < FIELD_COUNT; field++) {
        if ((seen & 1u << field) == 0)
            return error_set(scan->err, STATUS_FORMAT, "%s: tensor \"%.*s\": \"%s\" is missing",
                             scan->name, SCAN_SHOWN(name), field_names[field]);
    }
    return check_bytes(tensor, bits, scan, name);
}

/* A map from strings to strings; its content is of no interest. */
static enum status skip_metadata(struct scan *scan)
{
    struct scan_string ignored;
    TRY(scan_expect(scan, '{'));
    for (bool first = true; scan_peek(scan) != '}'; first = false) {
        if (!first)
            TRY(scan_expect(scan, ','));
        TRY(scan_string(&ignored, scan));
        TRY(scan_expect(scan, ':'));
        if (scan_peek(scan) != '"')
            return error_set(scan->err, STATUS_FORMAT,
                             "%s: \"__metadata__\": \"%.*s\": expected a string; nothing else may "
                             "stand there",
                             scan->name, SCAN_SHOWN(ignored));
        TRY(scan_string(&ignored, scan));
    }
    return scan_expect(scan, '}');
}

/* Where a pass over the header puts what it finds: nowhere in the first pass, which only checks
 * and counts, so that no memory is taken for a header that is refused. */
struct collector {
    struct tensor_info *tensors; /* NULL in the first pass */
    char *names;
    int64_t tensor_count;
    size_t name_bytes; /* with a NUL each */
};

static void collect(struct collector *collector, const struct tensor_info *tensor,
                    struct scan_string name)
{
    char *copy = collector->names == NULL ? NULL : collector->names + collector->name_bytes;
    size_t length = scan_unescape(copy, name);
    if (collector->tensors != NULL) {
        copy[length] = 0;
        collector->tensors[collector->tensor_count] = *tensor;
        collector->tensors[collector->tensor_count].name = copy;
    }
    collector->tensor_count++;
    collector->name_bytes += length + 1;
}

static enum status read_entries(struct collector *collector, struct scan *scan,
                                const struct layout *layout)
{
    bool has_metadata = false;
    TRY(scan_expect(scan, '{'));
    for (bool first = true; scan_peek(scan) != '}'; first = false) {
        struct scan_string name;
        struct tensor_info tensor;
        if (!first)
            TRY(scan_expect(scan, ','));
        TRY(scan_string(&name, scan));
        TRY(scan_expect(scan, ':'));
        if (scan_equals(name, METADATA_NAME)) {
            if (has_metadata)
                return error_set(scan->err, STATUS_FORMAT, "%s: \"__metadata__\" stands twice",
                                 scan->name);
            has_metadata = true;
            TRY(skip_metadata(scan));
            continue;
        }
        TRY(read_tensor(&tensor, scan, name, layout));
        collect(collector, &tensor, name);
    }
    TRY(scan_expect(scan, '}'));
    if (scan_peek(scan) >= 0)
        return error_set(scan->err, STATUS_FORMAT,
                         "%s: the header goes on behind its closing brace (byte %lld)", scan->name,
                         (long long)(scan->at - scan->start));
    return STATUS_OK;
}

static int compare_names(const void *a, const void *b)
{
    const struct tensor_info *left = a, *right = b;
    return strcmp(left->name, right->name);
}

static int compare_offsets(const void *a, const void *b)
{
    const struct tensor_info *left = a, *right = b;
    if (left->offset != right->offset)
        return left->offset < right->offset ? -1 : 1;
    if (left->bytes != right->bytes)
        return left->bytes < right->bytes ? -1 : 1;
    return strcmp(left->name, right->name);
}

static enum status check_names(struct tensor_info *tensors, int64_t count, const char *name,
                               struct error *err)
{
    if (count > 0)
        qsort(tensors, (size_t)count, sizeof *tensors, compare_names);
    for (int64_t i = 0; i < count; i++) {
        if (strcmp(tensors[i].name, METADATA_NAME) == 0) /* other readers take it for metadata */
            return error_set(err, STATUS_FORMAT, "%s: \"%s\" is written with escapes", name,
                             METADATA_NAME);
        if (i > 0 && strcmp(tensors[i - 1].name, tensors[i].name) == 0)
            return error_set(err, STATUS_FORMAT, "%s: tensor \"%s\" stands twice in the header",
                             name, tensors[i].name);
    }
    return STATUS_OK;
}

/* The data of the tensors must fill the rest of the file without holes and overlaps. */
static enum status check_tiling(struct tensor_info *tensors, int64_t count,
                                const struct layout *layout, const char *name, struct error *err)
{
    uint64_t at = layout->data_offset;
    if (count > 0)
        qsort(tensors, (size_t)count, sizeof *tensors, compare_offsets);
    for (int64_t i = 0; i < count; i++) {
        const struct tensor_info *tensor = &tensors[i];
        if (tensor->offset < at)
            return error_set(err, STATUS_FORMAT, "%s: tensors \"%s\" and \"%s\" overlap", name,
                             tensors[i - 1].name, tensor->name);
        if (tensor->offset > at)
            return error_set(err, STATUS_FORMAT,
                             "%s: a hole of %llu bytes lies before tensor \"%s\"", name,
                             (unsigned long long)(tensor->offset - at), tensor->name);
        at += tensor->bytes;
    }
    uint64_t end = layout->data_offset + layout->data_bytes;
    if (at != end)
        return error_set(err, STATUS_FORMAT,
                         "%s: %llu bytes lie behind the last tensor; the header must account for "
                         "the whole file",
                         name, (unsigned long long)(end - at));
    return STATUS_OK;
}

static enum status check_header_length(uint64_t header_bytes, uint64_t file_bytes, const char *name,
                                       struct error *err)
{
    if (header_bytes > SAFETENSORS_HEADER_BYTES_MAX)
        return error_set(err, STATUS_LIMIT, "%s: header length %llu; at most %u bytes are accepted",
                         name, (unsigned long long)header_bytes, SAFETENSORS_HEADER_BYTES_MAX);
    if (!checked_range(LENGTH_BYTES, header_bytes, file_bytes))
        return error_set(err, STATUS_FORMAT,
                         "%s: header length %llu does not fit the file of %llu bytes; the file was "
                         "cut or is no safetensors file",
                         name, (unsigned long long)header_bytes, (unsigned long long)file_bytes);
    if (header_bytes < 2)
        return error_set(err, STATUS_FORMAT, "%s: header length %llu: expected at least 2", name,
                         (unsigned long long)header_bytes);
    return STATUS_OK;
}

enum status safetensors_parse(struct safetensors *out, struct arena *arena, const char *header,
                              uint64_t header_bytes, uint64_t file_bytes, const char *name,
                              struct error *err)
{
    TRY(check_header_length(header_bytes, file_bytes, name, err));
    struct layout layout = {LENGTH_BYTES + header_bytes, file_bytes - LENGTH_BYTES - header_bytes};
    if (header[0] != '{')
        return error_set(err, STATUS_FORMAT, "%s: the header does not begin with '{'", name);
    if (!utf8_is_valid(header, header_bytes))
        return error_set(err, STATUS_FORMAT, "%s: the header is not valid UTF-8", name);
    struct scan scan = {header, header, header + header_bytes, name, err};
    struct collector collector = {0};
    TRY(read_entries(&collector, &scan, &layout));
    if (collector.tensor_count > SAFETENSORS_TENSORS_MAX)
        return error_set(err, STATUS_LIMIT,
                         "%s: the header lists %lld tensors; at most %d are read", name,
                         (long long)collector.tensor_count, SAFETENSORS_TENSORS_MAX);

    struct collector filled = {0};
    filled.tensors = arena_alloc(arena, (size_t)collector.tensor_count, sizeof *filled.tensors);
    filled.names = arena_alloc(arena, collector.name_bytes, 1);
    if (filled.tensors == NULL || filled.names == NULL)
        return error_set(err, STATUS_NO_MEMORY, "%s: cannot allocate the table of %lld tensors",
                         name, (long long)collector.tensor_count);
    scan.at = header;
    TRY(read_entries(&filled, &scan, &layout));
    TRY(check_names(filled.tensors, filled.tensor_count, name, err));
    TRY(check_tiling(filled.tensors, filled.tensor_count, &layout, name, err));
    out->tensors = filled.tensors;
    out->tensor_count = filled.tensor_count;
    return STATUS_OK;
}

enum status safetensors_read_header(struct safetensors *out, struct arena *arena, int fd,
                                    const char *name, struct error *err)
{
    struct stat stat;
    unsigned char word[LENGTH_BYTES];
    uint64_t header_bytes = 0;
    char *header;
    if (fstat(fd, &stat) != 0 || stat.st_size < LENGTH_BYTES)
        return error_set(err, STATUS_FORMAT,
                         "%s is too short for a safetensors file; it was cut or never written",
                         name);
    TRY(file_read_at(fd, name, 0, word, sizeof word, err));
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        header_bytes = header_bytes << 8 | word[i];
    TRY(check_header_length(header_bytes, (uint64_t)stat.st_size, name, err));
    TRY(memory_get_raw((void **)&header, header_bytes, 1, name, err));
    enum status status = file_read_at(fd, name, LENGTH_BYTES, header, header_bytes, err);
    if (status == STATUS_OK)
        status =
            safetensors_parse(out, arena, header, header_bytes, (uint64_t)stat.st_size, name, err);
    memory_free(header);
    return status;
}
