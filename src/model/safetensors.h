/* One safetensors file: the header, checked in full before anything else is believed.
 *
 * Format: docs at huggingface/safetensors. 8 bytes little-endian header length N (at most
 * 100,000,000), N bytes of JSON, then tensor data without holes or overlaps up to the end. */
#ifndef PHASOR_MODEL_SAFETENSORS_H
#define PHASOR_MODEL_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/numeric.h"
#include "base/status.h"

#define SAFETENSORS_HEADER_BYTES_MAX 100000000u
#define SAFETENSORS_TENSORS_MAX      (1 << 20) /* the largest published models have under 100,000 */
#define TENSOR_RANK_MAX              8

/* Types that stand in files; those without a `enum dtype` can be listed but not read. */
enum tensor_dtype {
    TENSOR_F32,
    TENSOR_BF16,
    TENSOR_F16,
    TENSOR_OTHER, /* a known safetensors type that phasor computes nothing with */
};

struct tensor_info {
    const char *name; /* owned by the arena given to safetensors_parse */
    enum tensor_dtype dtype;
    const char *dtype_text; /* as written, e.g. "BF16" */
    int rank;
    int64_t shape[TENSOR_RANK_MAX];
    uint64_t offset; /* of its first byte in the file */
    uint64_t bytes;
    int32_t shard; /* set by checkpoint.c */
};

struct safetensors {
    struct tensor_info *tensors; /* in order of offset; owned by the arena */
    int64_t tensor_count;
};

/* Parses a whole header: `header` holds the `header_bytes` of JSON (without the length word),
 * `file_bytes` is the size of the file. `name` names the file in messages. All of these are
 * refused: a length that does not fit the file, nesting or literals beyond the JSON limits,
 * duplicate names, unknown dtypes, shapes whose product overflows, offsets that are not two
 * non-negative integers, that disagree with shape x dtype, overlap, leave a hole, or do not end
 * exactly at the end of the file.
 * Stricter than the reference reader in five points: a name or "__metadata__" that stands twice, an
 * unknown field, white space before the first brace, a NUL in a string, more than TENSOR_RANK_MAX
 * dimensions.
 * A header that breaks the grammar takes no memory; duplicates, overlaps and holes are found in a
 * table of at most SAFETENSORS_TENSORS_MAX entries. `out` is set only on success; what the
 * arena got before a failure stays in it. */
enum status safetensors_parse(struct safetensors *out, struct arena *arena, const char *header,
                              uint64_t header_bytes, uint64_t file_bytes, const char *name,
                              struct error *err) MUST_CHECK;

/* Reads the length word and the header of an open file and parses it. Takes memory for the header
 * (at most the file's size, and freed again) only when its length fits the file. */
enum status safetensors_read_header(struct safetensors *out, struct arena *arena, int fd,
                                    const char *name, struct error *err) MUST_CHECK;

/* Writing, for `phasor synth` and for tests. The caller adds all tensors, then begins, then writes
 * the data in the order added. The file is written beside `path` and renamed at finish; abort
 * removes it. */
struct safetensors_writer;
enum status safetensors_writer_create(struct safetensors_writer **out, const char *path,
                                      struct error *err) MUST_CHECK;
enum status safetensors_writer_add(struct safetensors_writer *writer, const char *name,
                                   enum dtype dtype, const int64_t *shape, int rank,
                                   struct error *err) MUST_CHECK;
enum status safetensors_writer_begin(struct safetensors_writer *writer,
                                     struct error *err) MUST_CHECK;
enum status safetensors_writer_data(struct safetensors_writer *writer, const void *data,
                                    size_t bytes, struct error *err) MUST_CHECK;
enum status safetensors_writer_finish(struct safetensors_writer *writer,
                                      struct error *err) MUST_CHECK; /* frees it, also on failure */
void safetensors_writer_abort(struct safetensors_writer *writer);    /* NULL is allowed */

#endif
