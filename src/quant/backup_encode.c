#include "quant/backup_encode.h"

#include <string.h>
#include <zstd.h>

#include "base/memory.h"
#include "quant/int4.h"

/* Of contents that are made together; and of rows that are read at a time: what is packed from
 * there stays in a core's cache. */
#define CONTENTS_BYTES ((int64_t)16 << 20)
#define STAGING_BYTES  ((int64_t)512 << 10)

/* 6 % smaller with groups of 64, and not a percent more at higher levels. */
#define ZSTD_LEVEL 1

struct backup_encoder {
    const struct backup_form *form;
    const struct checkpoint *checkpoint;
    int64_t parts;
    char *contents; /* [parts], each with room for trailer and padding */
    char *frames;   /* with zstd: [parts] of frame_bytes, the same */
    int64_t frame_bytes;
    float *panel;  /* [group][16], where groups are long */
    char *staging; /* [2][staging_bytes]: as on disk, in the type that is rounded */
    int64_t staging_bytes;
    ZSTD_CCtx *zstd;
    struct int4_moments moments[BACKUP_PARTS_MAX][BACKUP_MATRICES];
};

int64_t backup_encode_parts(const struct backup_form *form)
{
    int64_t parts = form->parts;
    while (form->settings.scheme != BACKUP_PER_TENSOR && parts > 1 &&
           parts * form->content_bytes > CONTENTS_BYTES)
        parts /= 2;
    return parts;
}

/* Rows that are read and packed together are a multiple of it. */
static int64_t row_step(const struct backup_form *form, enum backup_matrix matrix)
{
    bool is_whole_group = matrix == BACKUP_DOWN && form->settings.scheme != BACKUP_PER_TENSOR;
    return is_whole_group ? form->settings.group : PACK_BLOCK;
}

static int64_t rows_of(const struct backup_form *form, enum backup_matrix matrix)
{
    return matrix == BACKUP_DOWN ? form->hidden_dim : form->granule_width;
}

static int64_t columns_of(const struct backup_encoder *encoder, enum backup_matrix matrix)
{
    const struct backup_form *form = encoder->form;
    return matrix == BACKUP_DOWN ? encoder->parts * form->granule_width : form->hidden_dim;
}

static int64_t rows_per_read(const struct backup_encoder *encoder, enum backup_matrix matrix)
{
    int64_t row_bytes = columns_of(encoder, matrix) * (int64_t)sizeof(float);
    int64_t step = row_step(encoder->form, matrix), rows = rows_of(encoder->form, matrix);
    int64_t fitting = STAGING_BYTES / row_bytes / step * step;
    fitting = fitting < step ? step : fitting;
    return fitting < rows ? fitting : rows;
}

/* ---- Buffers ------------------------------------------------------------------------------- */

static enum status buffers_get(struct backup_encoder *encoder, struct error *err)
{
    const struct backup_form *form = encoder->form;
    size_t content = (size_t)form->content_bytes;
    for (int m = 0; m < BACKUP_MATRICES; m++) {
        enum backup_matrix matrix = (enum backup_matrix)m;
        int64_t bytes =
            rows_per_read(encoder, matrix) * columns_of(encoder, matrix) * (int64_t)sizeof(float);
        encoder->staging_bytes = bytes > encoder->staging_bytes ? bytes : encoder->staging_bytes;
    }
    TRY(memory_get_raw((void **)&encoder->contents, (size_t)encoder->parts,
                       (size_t)backup_granule_span(form->content_bytes), "granules", err));
    TRY(memory_get_raw((void **)&encoder->staging, 2, (size_t)encoder->staging_bytes,
                       "weights that are rounded", err));
    if (form->settings.group > INT4_GROUP_MAX)
        TRY(memory_get_raw((void **)&encoder->panel, (size_t)form->settings.group,
                           PACK_BLOCK * sizeof *encoder->panel, "weights that are rounded", err));
    if (form->settings.has_zstd) {
        encoder->frame_bytes = backup_granule_span((int64_t)ZSTD_compressBound(content));
        TRY(memory_get_raw((void **)&encoder->frames, (size_t)encoder->parts,
                           (size_t)encoder->frame_bytes, "granules", err));
        encoder->zstd = ZSTD_createCCtx();
        if (encoder->zstd == NULL)
            return error_set(err, STATUS_NO_MEMORY, "cannot allocate what zstd needs");
    }
    return STATUS_OK;
}

enum status backup_encoder_create(struct backup_encoder **out, const struct backup_form *form,
                                  const struct checkpoint *checkpoint, struct error *err)
{
    struct backup_encoder *encoder;
    TRY(memory_get((void **)&encoder, 1, sizeof *encoder, "a quantizer", err));
    encoder->form = form;
    encoder->checkpoint = checkpoint;
    encoder->parts = backup_encode_parts(form);
    enum status status = buffers_get(encoder, err);
    if (status == STATUS_OK)
        *out = encoder;
    else
        backup_encoder_destroy(encoder);
    return status;
}

void backup_encoder_destroy(struct backup_encoder *encoder)
{
    if (encoder == NULL)
        return;
    ZSTD_freeCCtx(encoder->zstd);
    memory_free(encoder->panel);
    memory_free(encoder->staging);
    memory_free(encoder->frames);
    memory_free(encoder->contents);
    memory_free(encoder);
}

/* ---- One matrix ---------------------------------------------------------------------------- */

/* A matrix of the parts that are made: where it is found, and what is done with its rows. */
struct passage {
    struct backup_encoder *encoder;
    enum backup_matrix matrix;
    int64_t expert, part;
    struct weight_location where;
    enum dtype dtype;           /* bf16 as it is, all else as f32 */
    struct int4_common *common; /* NULL: pack */
    int pass;
    const struct int4_scales *scales; /* of all groups; or NULL */
};

static char *content_of(const struct backup_encoder *encoder, int64_t i)
{
    return encoder->contents + i * backup_granule_span(encoder->form->content_bytes);
}

static struct int4_target target_of(const struct passage *passage, int64_t i)
{
    struct backup_encoder *encoder = passage->encoder;
    char *content = content_of(encoder, i);
    struct matrix matrix = backup_granule_matrix(encoder->form, content, passage->matrix);
    return (struct int4_target){
        .data = (uint8_t *)(uintptr_t)matrix.data,
        .scales = (uint16_t *)(uintptr_t)matrix.scales,
        .minima = (uint16_t *)(uintptr_t)matrix.minima,
        .source = passage->dtype,
        .packing = matrix.packing,
        .rows = matrix.rows,
        .columns = matrix.columns,
        .stride = columns_of(encoder, passage->matrix),
        .group = matrix.group,
        .panel = encoder->panel,
        .common = passage->scales,
        .moments = &encoder->moments[i][passage->matrix],
    };
}

static enum status rows_take(const struct passage *passage, int64_t i, const char *values,
                             int64_t row, int64_t row_count, struct error *err)
{
    struct int4_target target = target_of(passage, i);
    int64_t bad_row, bad_column, part = passage->part + i;
    bool is_down = passage->matrix == BACKUP_DOWN;
    if (passage->common == NULL
            ? int4_pack_rows(&target, values, row, row_count, &bad_row, &bad_column)
            : int4_common_rows(passage->common, passage->pass, &target, values, row_count, &bad_row,
                               &bad_column))
        return STATUS_OK;
    bad_row += passage->common == NULL ? 0 : row;
    *(is_down ? &bad_column : &bad_row) += part * passage->encoder->form->granule_width;
    return error_set(err, STATUS_FORMAT,
                     "tensor %s: the weight at row %lld, column %lld of expert %lld is none that "
                     "INT4 can hold (not a number, or beyond 1e15)",
                     passage->where.tensor->name, (long long)bad_row, (long long)bad_column,
                     (long long)passage->expert);
}

static enum status block_read(const struct passage *passage, const struct block *block, char **out,
                              struct error *err)
{
    struct backup_encoder *encoder = passage->encoder;
    *out = encoder->staging + encoder->staging_bytes;
    return checkpoint_read_block(encoder->checkpoint, &passage->where, *block, *out, passage->dtype,
                                 encoder->staging, (uint64_t)encoder->staging_bytes, err);
}

/* Gate and up: each granule has rows of its own. */
static enum status rows_pass(const struct passage *passage, struct error *err)
{
    const struct backup_form *form = passage->encoder->form;
    int64_t step = rows_per_read(passage->encoder, passage->matrix), width = form->granule_width;
    for (int64_t i = 0; i < passage->encoder->parts; i++) {
        for (int64_t row = 0; row < width; row += step) {
            char *values;
            struct block block = {.row = (passage->part + i) * width + row,
                                  .row_count = width - row < step ? width - row : step,
                                  .column_count = form->hidden_dim};
            TRY(block_read(passage, &block, &values, err));
            TRY(rows_take(passage, i, values, row, block.row_count, err));
        }
    }
    return STATUS_OK;
}

/* Down: each granule has columns of its own, of the same rows. */
static enum status columns_pass(const struct passage *passage, struct error *err)
{
    const struct backup_form *form = passage->encoder->form;
    int64_t step = rows_per_read(passage->encoder, passage->matrix), width = form->granule_width;
    for (int64_t row = 0; row < form->hidden_dim; row += step) {
        char *values;
        int64_t left = form->hidden_dim - row;
        struct block block = {.row = row,
                              .row_count = left < step ? left : step,
                              .column = passage->part * width,
                              .column_count = passage->encoder->parts * width};
        TRY(block_read(passage, &block, &values, err));
        for (int64_t i = 0; i < passage->encoder->parts; i++)
            TRY(rows_take(passage, i, values + i * width * dtype_bytes(passage->dtype), row,
                          block.row_count, err));
    }
    return STATUS_OK;
}

static enum status pass(const struct passage *passage, struct error *err)
{
    return passage->matrix == BACKUP_DOWN ? columns_pass(passage, err) : rows_pass(passage, err);
}

static enum status matrix_encode(struct passage *passage, struct error *err)
{
    const struct backup_settings *settings = &passage->encoder->form->settings;
    struct int4_common common = {.is_asymmetric = settings->is_asymmetric};
    struct int4_scales scales;
    if (settings->scheme == BACKUP_PER_TENSOR) {
        passage->common = &common;
        for (passage->pass = 0; passage->pass < 2; passage->pass++)
            TRY(pass(passage, err));
        int4_common_find(&scales, &common);
        passage->common = NULL;
        passage->scales = &scales;
    }
    return pass(passage, err);
}

enum status backup_encode(struct backup_encoder *encoder, int64_t layer, int64_t expert,
                          int64_t part, struct error *err)
{
    static const enum weight weights[BACKUP_MATRICES] = {WEIGHT_EXPERT_GATE, WEIGHT_EXPERT_UP,
                                                         WEIGHT_EXPERT_DOWN};
    memset(encoder->moments, 0, sizeof encoder->moments);
    for (int m = 0; m < BACKUP_MATRICES; m++) {
        struct passage passage = {
            .encoder = encoder, .matrix = (enum backup_matrix)m, .expert = expert, .part = part};
        TRY(checkpoint_locate(&passage.where, encoder->checkpoint, weights[m], layer, expert, err));
        passage.dtype = passage.where.tensor->dtype == TENSOR_BF16 ? DTYPE_BF16 : DTYPE_F32;
        TRY(matrix_encode(&passage, err));
    }
    return STATUS_OK;
}

/* ---- As it is stored ------------------------------------------------------------------------ */

/* The content where it is, or zstd's frame of it: with room behind. */
static enum status content_store(char **stored, int64_t *stored_bytes,
                                 struct backup_encoder *encoder, int64_t i, struct error *err)
{
    size_t bytes = (size_t)encoder->form->content_bytes;
    *stored = content_of(encoder, i);
    *stored_bytes = (int64_t)bytes;
    if (!encoder->form->settings.has_zstd)
        return STATUS_OK;
    char *frame = encoder->frames + i * encoder->frame_bytes;
    size_t length = ZSTD_compressCCtx(encoder->zstd, frame, ZSTD_compressBound(bytes), *stored,
                                      bytes, ZSTD_LEVEL);
    if (ZSTD_isError(length))
        return error_set(err, STATUS_NO_MEMORY, "zstd failed: %s", ZSTD_getErrorName(length));
    *stored = frame;
    *stored_bytes = (int64_t)length;
    return STATUS_OK;
}

static struct backup_trailer trailer_of(const struct int4_moments moments[BACKUP_MATRICES])
{
    struct backup_trailer trailer = {.checksum = 0};
    for (int m = 0; m < BACKUP_MATRICES; m++) {
        for (int lane = 0; lane < INT4_LANES; lane++) {
            trailer.moments[m][0] += moments[m].product[lane];
            trailer.moments[m][1] += moments[m].before[lane];
            trailer.moments[m][2] += moments[m].after[lane];
        }
    }
    return trailer;
}

enum status backup_encoded(const void **bytes, int64_t *stored_bytes,
                           struct backup_encoder *encoder, int64_t i, int64_t number,
                           struct error *err)
{
    char *stored;
    struct backup_trailer trailer = trailer_of(encoder->moments[i]);
    TRY(content_store(&stored, stored_bytes, encoder, i, err));
    char *end = stored + *stored_bytes;
    memset(end, 0, (size_t)(backup_granule_span(*stored_bytes) - *stored_bytes));
    memcpy(end, &trailer, sizeof trailer); /* the checksum is of what stands before it */
    trailer.checksum = backup_granule_checksum(encoder->form, number, stored, *stored_bytes);
    memcpy(end, &trailer, sizeof trailer);
    *bytes = stored;
    return STATUS_OK;
}
