/* Which rank holds which slice of which weight.
 *
 * Attention: tensor-parallel groups of At neighbouring ranks, Ad of them, each with its own
 * sequences. Experts: tensor-parallel groups of Et neighbouring ranks; group g of the Ee holds the
 * experts that the placement gives to it, each cut Et ways along its intermediate dimension. At x
 * Ad = Et x Ee = N. Shared experts and dense layers are cut over the attention's group, or whole on
 * every rank. Embedding and head are cut over the vocabulary on all ranks. Everything here is pure.
 */
#ifndef PHASOR_LAYOUT_LAYOUT_H
#define PHASOR_LAYOUT_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "layout/packing.h"
#include "layout/shape.h"

#define LAYOUT_RANKS_MAX  64
#define LAYOUT_TEXT_BYTES 96 /* enough for layout_format and plan_layouts_format */

struct attention_layout {
    int tp, dp; /* At, Ad */
    /* Shared experts and dense layers whole on every rank, though they could be cut over the
     * attention's group; in text ":rep" behind the attention. */
    bool replicate_ffn;
};

struct expert_layout {
    int tp, ep; /* Et, Ee */
};

struct layout {
    int rank_count;
    struct attention_layout attention;
    struct expert_layout experts;
};

enum phase { PHASE_PREFILL, PHASE_DECODE, PHASE_COUNT };

/* The layouts of a plan. Ranks and attention are the same in both, because of the KV cache. */
struct plan_layouts {
    struct layout of[PHASE_COUNT];
    bool decode_is_packed; /* decode multiplies on the INT4 backup's weights as they are; in text
                            * ":int4" behind the layout of decode */
};

/* ---- Text -------------------------------------------------------------------------------------
 *
 * "attention|experts": attention is tpA, dpD or tpAdpD, experts are tpT, epE or tpTepE; a degree
 * that is left out is 1 ("dp4|ep4", "tp2dp2|tp2ep2", "tp4:rep|ep4", "tp1|tp1"). A plan may have
 * ">experts" behind it, the layout of the experts in decode ("dp4|ep4>tp4"); without it both phases
 * have one layout. Behind that ":int4" may stand ("dp4|ep4>tp4:int4", "tp4|tp4>tp4:int4"). */

/* `text` need not be valid in any way. `rank_count` 0: as many as the attention's degrees multiply
 * to. STATUS_INVALID_ARGUMENT with a sentence that quotes the text (the beginning of a long one),
 * says what was expected, and names `rank_count` where the degrees do not multiply to it. There is
 * one spelling: tp stands before dp and ep, degrees are 1 .. 99 without leading zeros, and nothing
 * stands between. */
enum status plan_layouts_parse(struct plan_layouts *out, const char *text, int rank_count,
                               struct error *err) MUST_CHECK;

/* The same for one layout: a text with ">" is STATUS_INVALID_ARGUMENT. */
enum status layout_parse(struct layout *out, const char *text, int rank_count,
                         struct error *err) MUST_CHECK;

/* The one form that is read back to the same: degrees of 1 are left out, but for tp1 where both are
 * 1, and a decode layout that is the prefill layout is left out, but for its ":int4". */
void plan_layouts_format(char out[LAYOUT_TEXT_BYTES], const struct plan_layouts *plan);
void layout_format(char out[LAYOUT_TEXT_BYTES], const struct layout *layout);

/* Whether the experts lie otherwise in decode than in prefill, or in another format. */
static inline bool plan_layouts_differ(const struct plan_layouts *plan)
{
    return plan->decode_is_packed ||
           plan->of[PHASE_PREFILL].experts.tp != plan->of[PHASE_DECODE].experts.tp;
}

/* One layout for both phases. */
static inline struct plan_layouts plan_layouts_static(const struct layout *layout)
{
    return (struct plan_layouts){.of = {*layout, *layout}};
}

/* ---- Which are legal ------------------------------------------------------------------------- */

/* Granules of an expert: an eighth of its width, or what the largest power of two up to 8 that
 * divides the width into multiples of 16 leaves; 1 for a width that is no multiple of 16. */
int64_t layout_granule_count(int64_t expert_dim);

/* Whether this model can lie so; else STATUS_UNSUPPORTED, and the sentence names the rule with its
 * numbers ("28 query heads cannot be cut 8 ways", ...). Rules: At divides query heads and KV heads;
 * Ee divides the experts; Et divides the granules of an expert. Always legal: what only moves
 * tokens. The degrees multiply to rank_count (an assertion: layout_parse and layout_list see to
 * it). */
enum status layout_check(const struct layout *layout, const struct model_shape *shape,
                         struct error *reason) MUST_CHECK;

/* The same for both phases; the sentence names the phase where they differ. Rule of ":int4": there
 * are experts, of a width and a hidden size that are multiples of 16. */
enum status plan_layouts_check(const struct plan_layouts *plan, const struct model_shape *shape,
                               struct error *reason) MUST_CHECK;

/* At most so many: 60 ranks have 12 divisors. */
#define LAYOUT_LIST_MAX 144

/* All pairs of degrees that multiply to rank_count, legal or not, in rising order of At, then Et;
 * replicate_ffn is false. Returns how many; writes at most `capacity`. */
int layout_list(struct layout *out, int capacity, int rank_count);

/* The baselines: largest legal At with largest legal Et (static TP), or with the largest legal Ee
 * (static EP). STATUS_UNSUPPORTED when this model cannot lie on so many ranks at all. */
enum status layout_static_tp(struct layout *out, const struct model_shape *shape, int rank_count,
                             struct error *reason) MUST_CHECK;
enum status layout_static_ep(struct layout *out, const struct model_shape *shape, int rank_count,
                             struct error *reason) MUST_CHECK;

/* ---- Where a rank stands --------------------------------------------------------------------- */

struct layout_place {
    int at, ad; /* in its attention group; which group */
    int et, ee; /* in its expert group; which group */
};
struct layout_place layout_place(const struct layout *layout, int rank);

/* ---- Slices ---------------------------------------------------------------------------------- */

struct range {
    int64_t first, count;
};

/* `total` things over `parts`, in order; the first (total mod parts) have one more. */
struct range layout_share(int64_t total, int64_t parts, int64_t part);

struct range layout_heads(const struct layout *layout, const struct model_shape *shape, int rank);
struct range layout_kv_heads(const struct layout *layout, const struct model_shape *shape,
                             int rank);

/* Of the intermediate dimension of an expert, in rows of gate; cut at blocks of 16. */
struct range layout_expert_width(const struct layout *layout, const struct model_shape *shape,
                                 int rank);

/* The same of a shared expert or a dense layer of `width`: cut over the attention group where At
 * divides it into multiples of 16 and replicate_ffn is not set, else the whole. */
bool layout_ffn_is_cut(const struct layout *layout, int64_t width);
struct range layout_ffn_width(const struct layout *layout, int64_t width, int rank);

/* Token ids whose rows of embedding and head this rank holds: ceil(V / N) rounded up to 16, the
 * last shorter, perhaps empty. */
struct range layout_vocab(const struct model_shape *shape, int rank_count, int rank);

/* The bytes of a slice in the packing: blocks [first / 16, ...) of each of an expert's matrices are
 * one range of the whole matrix's bytes. `width` is a range from layout_expert_width. */
struct range layout_slice_bytes(const struct model_shape *shape, struct range width,
                                enum dtype dtype);

/* ---- The placement table --------------------------------------------------------------------- */

/* group_of[e] = the expert group that holds expert e: e / (E / Ee) until tables with replicas come.
 * group_of is [expert_count]. */
void layout_placement(int32_t *group_of, const struct layout *layout,
                      const struct model_shape *shape);

#endif
