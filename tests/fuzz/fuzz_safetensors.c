/* A safetensors header. An input begins with a letter:
 *   F  the rest is a file as it lies on disk (length word, header, data);
 *   H  digits, a newline, and the header: the file has so many bytes of data, which are not there.
 * The second form reaches the rules behind the length word without its having to be right. */
#include <string.h>
#include <unistd.h>

#include "base/checked.h"
#include "base/text.h"
#include "fuzz.h"
#include "model/safetensors.h"

static const struct {
    const char *text;
    uint64_t bits;
} dtypes[] = {
    {"F64", 64},    {"F32", 32},    {"F16", 16},    {"BF16", 16},   {"I64", 64},
    {"I32", 32},    {"I16", 16},    {"I8", 8},      {"U64", 64},    {"U32", 32},
    {"U16", 16},    {"U8", 8},      {"BOOL", 8},    {"C64", 64},    {"F8_E4M3", 8},
    {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},
};

static uint64_t bits_of_dtype(const char *text)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++) {
        if (strcmp(dtypes[i].text, text) == 0)
            return dtypes[i].bits;
    }
    FUZZ_CHECK(!"known dtype");
    return 0;
}

static void check_tensor(const struct tensor_info *tensor)
{
    FUZZ_CHECK(tensor->name != NULL && utf8_is_valid(tensor->name, strlen(tensor->name)));
    FUZZ_CHECK(strcmp(tensor->name, "__metadata__") != 0);
    FUZZ_CHECK(tensor->rank >= 0 && tensor->rank <= TENSOR_RANK_MAX);
    uint64_t bits = bits_of_dtype(tensor->dtype_text);
    for (int i = 0; i < tensor->rank; i++) {
        FUZZ_CHECK(tensor->shape[i] >= 0);
        FUZZ_CHECK(checked_mul(&bits, bits, (uint64_t)tensor->shape[i]));
    }
    FUZZ_CHECK(bits % 8 == 0 && bits / 8 == tensor->bytes);
    FUZZ_CHECK((tensor->dtype == TENSOR_F32) == (strcmp(tensor->dtype_text, "F32") == 0));
    FUZZ_CHECK((tensor->dtype == TENSOR_F16) == (strcmp(tensor->dtype_text, "F16") == 0));
    FUZZ_CHECK((tensor->dtype == TENSOR_BF16) == (strcmp(tensor->dtype_text, "BF16") == 0));
}

/* The tensors are in order and fill [data_offset, file_bytes). */
static void check_accepted(const struct safetensors *file, uint64_t data_offset,
                           uint64_t file_bytes)
{
    uint64_t at = data_offset;
    for (int64_t i = 0; i < file->tensor_count; i++) {
        const struct tensor_info *tensor = &file->tensors[i];
        check_tensor(tensor);
        FUZZ_CHECK(tensor->offset == at);
        FUZZ_CHECK(checked_range(tensor->offset, tensor->bytes, file_bytes));
        at += tensor->bytes;
        for (int64_t j = 0; j < i && i < 64; j++)
            FUZZ_CHECK(strcmp(file->tensors[j].name, tensor->name) != 0);
    }
    FUZZ_CHECK(at == file_bytes);
}

static void try_file(const uint8_t *bytes, size_t length)
{
    struct safetensors file = {0};
    struct arena arena = {0};
    struct error err;
    int fd = fuzz_file(bytes, length);
    enum status status = safetensors_read_header(&file, &arena, fd, "fuzz", &err);
    if (status == STATUS_OK) {
        uint64_t header_bytes = 0;
        for (int i = 7; i >= 0; i--)
            header_bytes = header_bytes << 8 | bytes[i];
        check_accepted(&file, 8 + header_bytes, length);
    } else {
        fuzz_check_error(status, &err);
    }
    close(fd);
    arena_deinit(&arena);
}

static void try_header(const uint8_t *bytes, size_t length)
{
    struct safetensors file = {0};
    struct arena arena = {0};
    struct error err;
    uint64_t data_bytes = 0, file_bytes;
    size_t at = 0;
    while (at < length && bytes[at] >= '0' && bytes[at] <= '9')
        data_bytes = data_bytes * 10 + (uint64_t)(bytes[at++] - '0'); /* wraps: any value will do */
    at += at < length;
    if (!checked_add(&file_bytes, data_bytes, 8 + (length - at)))
        file_bytes = UINT64_MAX;
    length -= at;
    char *header = memory_alloc_raw(length, 1); /* no longer than it is: reads behind it show */
    FUZZ_CHECK(header != NULL);
    memcpy(header, bytes + at, length);
    enum status status = safetensors_parse(&file, &arena, header, length, file_bytes, "fuzz", &err);
    memory_free(header); /* nothing may point into it */
    if (status == STATUS_OK)
        check_accepted(&file, 8 + length, file_bytes);
    else
        fuzz_check_error(status, &err);
    arena_deinit(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_account account = fuzz_begin(size);
    if (size > 0 && data[0] == 'F')
        try_file(data + 1, size - 1);
    else if (size > 0 && data[0] == 'H')
        try_header(data + 1, size - 1);
    fuzz_end(&account);
    return 0;
}
