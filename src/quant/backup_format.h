/* The backup file, byte by byte: docs/backup-format.md is the same in words.
 *
 * One file holds all routed experts of a checkpoint in INT4. Numbers are little-endian. The header
 * fills the first page; with zstd an index follows; then come the granules in order of layer,
 * expert and part, each from a page on. A granule is one expert's share of an eighth of its width:
 * what it holds is a range of bytes of any legal slice, in the order of layout/packing.h. */
#ifndef PHASOR_QUANT_BACKUP_FORMAT_H
#define PHASOR_QUANT_BACKUP_FORMAT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "layout/expert_form.h"
#include "model/config.h"
#include "model/fingerprint.h"

#define BACKUP_MAGIC   "PHASORQ4"
#define BACKUP_VERSION 1
#define BACKUP_PAGE    4096

/* Limits of what is read: every size that follows from them fits 63 bits. */
#define BACKUP_DIM_MAX     ((int64_t)1 << 24)
#define BACKUP_CONTENT_MAX ((int64_t)1 << 30)

#define BACKUP_PARTS_MAX 8 /* granules of an expert, layout_granule_count */

/* Which weights have a scale of their own. All are stored alike, as groups along the hidden
 * dimension: of a channel the group is the whole row, of a tensor too, and all scales are equal. */
enum backup_scheme { BACKUP_PER_GROUP, BACKUP_PER_CHANNEL, BACKUP_PER_TENSOR, BACKUP_SCHEME_COUNT };
extern const char *const backup_scheme_names[BACKUP_SCHEME_COUNT];

#define BACKUP_ASYMMETRIC 1u
#define BACKUP_ZSTD       2u

struct backup_header {
    char magic[8];
    uint32_t version;
    uint32_t is_complete;    /* 0 in a file that is being written */
    uint64_t fingerprint[2]; /* fingerprint_weights: low, high */
    uint32_t scheme;
    uint32_t flags; /* BACKUP_ASYMMETRIC | BACKUP_ZSTD */
    uint64_t group;
    uint64_t hidden_dim;
    uint64_t expert_dim;
    uint64_t expert_count; /* of a layer */
    uint64_t layer_count;
    uint64_t moe_layer_count; /* of them have experts */
    uint64_t granule_count;
    uint64_t content_bytes; /* of a granule, not compressed */
    uint64_t data_offset;   /* of granule 0 */
    uint64_t file_bytes;
    uint64_t index_checksum; /* XXH3 of the index's pages; 0 without zstd */
    uint8_t reserved[3960];  /* zeros */
    uint64_t checksum;       /* XXH3 of all before it */
};
#define AT(member, offset)                                                                         \
    _Static_assert(offsetof(struct backup_header, member) == (offset), "docs/backup-format.md")
AT(version, 8);
AT(is_complete, 12);
AT(fingerprint, 16);
AT(scheme, 32);
AT(flags, 36);
AT(group, 40);
AT(hidden_dim, 48);
AT(expert_dim, 56);
AT(expert_count, 64);
AT(layer_count, 72);
AT(moe_layer_count, 80);
AT(granule_count, 88);
AT(content_bytes, 96);
AT(data_offset, 104);
AT(file_bytes, 112);
AT(index_checksum, 120);
AT(reserved, 128);
AT(checksum, 4088);
#undef AT
_Static_assert(sizeof(struct backup_header) == BACKUP_PAGE, "the header is a page");
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "structs are the file's bytes");

/* With zstd: where each granule lies. Zeros: it is not written yet; zeros fill the last page. */
struct backup_entry {
    uint64_t offset;       /* a multiple of BACKUP_PAGE */
    uint64_t stored_bytes; /* compressed, without trailer and padding */
};
_Static_assert(sizeof(struct backup_entry) == 16, "docs/backup-format.md");

enum backup_matrix { BACKUP_GATE, BACKUP_UP, BACKUP_DOWN, BACKUP_MATRICES };

/* Behind a granule's stored bytes; zeros fill its last page. */
struct backup_trailer {
    double moments[BACKUP_MATRICES][3]; /* sums over weights w and what became of them, v: w v, w w,
                                         * v v: cosines can be told from the file alone */
    uint64_t checksum; /* XXH3 of all before it, seeded with fingerprint and number */
};
_Static_assert(sizeof(struct backup_trailer) == 80, "docs/backup-format.md");

/* What is chosen when a backup is made. */
struct backup_settings {
    enum backup_scheme scheme;
    bool is_asymmetric, has_zstd;
    int64_t group; /* BACKUP_PER_GROUP: a multiple of 16 */
};

/* A backup's numbers, and what follows from them. */
struct backup_form {
    struct backup_settings settings; /* with the group that is stored, whatever the scheme */
    struct fingerprint fingerprint;
    int64_t hidden_dim, expert_dim, expert_count, layer_count, moe_layer_count;
    int64_t parts;         /* granules of an expert */
    int64_t granule_width; /* of the expert's width */
    int64_t granule_count;
    int64_t nibble_bytes, scale_bytes; /* of one matrix of a granule */
    int64_t content_bytes;
    int64_t index_bytes, data_offset; /* whole pages */
};

/* For this model. STATUS_UNSUPPORTED when its experts cannot be INT4: sizes that are no multiples
 * of 16, or too large; STATUS_INVALID_ARGUMENT for a group that is none. */
enum status backup_form_make(struct backup_form *out, const struct backup_settings *settings,
                             const struct model_config *config,
                             const struct fingerprint *fingerprint, struct error *err) MUST_CHECK;

/* The numbers of experts in memory that are as they lie in a backup: each array of a granule is
 * then a range of an array of such a slice. */
struct expert_type backup_expert_type(const struct backup_settings *settings, int64_t hidden_dim);

/* Whether a file of the one form is a file of the other. */
bool backup_form_is_same(const struct backup_form *a, const struct backup_form *b);

/* With checksum. `file_bytes` and `index_checksum` count where it is complete. */
void backup_header_write(struct backup_header *out, const struct backup_form *form,
                         bool is_complete, uint64_t file_bytes, uint64_t index_checksum);
uint64_t backup_header_checksum(const struct backup_header *header);

/* Checks every number of a header; `path` is for sentences. What does not hang together is
 * STATUS_FORMAT, another version or setting STATUS_UNSUPPORTED. */
enum status backup_header_read(struct backup_form *out, const struct backup_header *header,
                               const char *path, struct error *err) MUST_CHECK;

/* Granule `part` of an expert of the moe_layer-th layer that has any. */
static inline int64_t backup_granule(const struct backup_form *form, int64_t moe_layer,
                                     int64_t expert, int64_t part)
{
    return (moe_layer * form->expert_count + expert) * form->parts + part;
}

/* Ranges of a granule's content: each is to be copied as it is to the range of its blocks in a
 * matrix of the expert (or of a slice), or in that matrix's scales or minima. */
struct range backup_nibbles(const struct backup_form *form, enum backup_matrix matrix);
struct range backup_scales(const struct backup_form *form, enum backup_matrix matrix);
struct range backup_minima(const struct backup_form *form, enum backup_matrix matrix);

/* A matrix of the granule, in place: gate and up [granule_width][hidden], down
 * [hidden][granule_width]. `content` is aligned to 4 bytes. */
struct matrix backup_granule_matrix(const struct backup_form *form, const void *content,
                                    enum backup_matrix matrix);

/* The same in packed bf16, each weight rounded once: `out` is packed_bytes of it. Slow and plain.
 */
void backup_granule_dequantize(uint16_t *out, const struct backup_form *form, const void *content,
                               enum backup_matrix matrix);

/* Bytes that a granule takes in the file, with so many stored; and the most that any takes. */
int64_t backup_granule_span(int64_t stored_bytes);
int64_t backup_granule_span_max(const struct backup_form *form);

/* The checksum of a granule whose `stored` bytes, with the trailer's moments behind them, are at
 * `stored`. */
uint64_t backup_granule_checksum(const struct backup_form *form, int64_t number, const void *stored,
                                 int64_t stored_bytes);

#endif
