#include "planner/transition_cost.h"

#include <math.h>

#include "base/checked.h"

/* ---- What is hidden -------------------------------------------------------------------------- */

/* When the last pass is done with a layer. */
static double released_at(const struct hiding *hiding, int64_t layer)
{
    double begin = hiding->prefill - hiding->last_pass;
    return begin + hiding->last_pass * (double)(layer + 1) / (double)hiding->layers;
}

/* Of numbers; fmax and fmin are calls, and this is most of what the search does. */
static double later(double one, double two)
{
    return one > two ? one : two;
}

static double earlier(double one, double two)
{
    return one < two ? one : two;
}

/* Seconds by which copies make passes longer that had the link for so long beside them. */
static double held_up(const struct hiding *hiding, double copying)
{
    if (!(hiding->prefill > 0))
        return 0;
    return hiding->link_sharing * hiding->exchanging * fmin(copying / hiding->prefill, 1);
}

/* Of `seconds` that end at `end` those before `limit`. */
static double before(double limit, double end, double seconds)
{
    return earlier(later(limit - (end - seconds), 0), seconds);
}

/* Layers are written one after another; the i-th needs the slot that the (i - spares)-th left. */
double hiding_exposed(const struct hiding *hiding)
{
    enum { SPARES_MAX = 256 };
    double swapped[SPARES_MAX]; /* of the last `spares` layers */
    int64_t spares = hiding->spares < SPARES_MAX ? hiding->spares : SPARES_MAX;
    double written = hiding->is_beside ? 0 : hiding->prefill, now = hiding->prefill, beside = 0;
    ASSERT(spares >= 1);
    if (!isfinite(hiding->layer))
        return INFINITY;
    for (int64_t layer = 0, slot = 0; layer < hiding->layers; layer++) {
        double free_at = layer >= spares ? swapped[slot] : 0;
        written = later(written, free_at) + hiding->layer;
        beside += before(hiding->prefill, written, hiding->layer);
        swapped[slot] = later(written, released_at(hiding, layer));
        now = later(now, swapped[slot]) + hiding->decode_layer;
        slot = slot + 1 < spares ? slot + 1 : 0; /* layer % spares, without dividing */
    }
    double exposed = now - hiding->prefill - (double)hiding->layers * hiding->decode_layer;
    exposed = exposed > 1e-12 * now ? exposed : 0; /* sums do not come out even */
    double link = hiding->layer > 0 ? hiding->layer_link / hiding->layer : 0;
    return exposed + held_up(hiding, beside * link);
}

/* ---- Bytes ----------------------------------------------------------------------------------- */

struct change change_by_reshard(const struct model_shape *shape, const struct layout *from,
                                const struct layout *to, struct expert_type type)
{
    int64_t sent[LAYOUT_RANKS_MAX * LAYOUT_RANKS_MAX];
    int ranks = from->rank_count;
    double block = (double)expert_block_bytes(shape, type), most = 0;
    moves_sent_blocks(sent, shape, from, to);
    for (int to_rank = 0; to_rank < ranks; to_rank++) {
        double received = 0;
        for (int rank = 0; rank < ranks; rank++)
            received += rank == to_rank ? 0 : (double)sent[rank * ranks + to_rank] * block;
        most = fmax(most, received);
    }
    return (struct change){.received = most};
}

static double slice_bytes(const struct model_shape *shape, const struct layout *layout, int rank,
                          struct expert_type type)
{
    struct expert_slice slice = moves_slice(shape, layout, rank);
    return (double)slice.expert_count * (double)slice.blocks.count *
           (double)expert_block_bytes(shape, type);
}

/* Values of a layer's experts on a rank. */
static double slice_values(const struct model_shape *shape, const struct layout *layout, int rank)
{
    struct expert_slice slice = moves_slice(shape, layout, rank);
    return (double)slice.expert_count * (double)slice.blocks.count * PACK_BLOCK *
           (double)shape->hidden_dim * EXPERT_MATRICES;
}

/* What the rank has already is not read: as much as nobody would have to send it. */
struct change change_by_reload(const struct model_shape *shape, const struct layout *from,
                               const struct layout *to, struct expert_type type)
{
    int64_t sent[LAYOUT_RANKS_MAX * LAYOUT_RANKS_MAX];
    int ranks = from->rank_count;
    double block = (double)expert_block_bytes(shape, type);
    struct change change = {0};
    moves_sent_blocks(sent, shape, from, to);
    for (int to_rank = 0; to_rank < ranks; to_rank++) {
        double taken = 0;
        for (int rank = 0; rank < ranks; rank++)
            taken += rank == to_rank ? 0 : (double)sent[rank * ranks + to_rank] * block;
        change.read += taken;
        change.taken = fmax(change.taken, taken);
        change.file += slice_bytes(shape, to, to_rank, type) * (double)shape->moe_layer_count;
    }
    return change;
}

struct change change_by_upload(const struct model_shape *shape, const struct layout *to,
                               struct expert_type backup)
{
    struct change change = {0};
    for (int rank = 0; rank < to->rank_count; rank++) {
        double taken = slice_bytes(shape, to, rank, backup);
        change.read += taken;
        change.taken = fmax(change.taken, taken);
        change.values = fmax(change.values, slice_values(shape, to, rank));
    }
    change.backup = change.file = change.read * (double)shape->moe_layer_count;
    return change;
}

/* ---- Seconds --------------------------------------------------------------------------------- */

double change_reshard_seconds(const struct profile *profile, const struct change *change,
                              int rank_count)
{
    return profile_collective_seconds(profile, GROUP_ALL_TO_ALL, rank_count, false,
                                      change->received);
}

double change_link_seconds(const struct profile *profile, const struct change *change)
{
    return profile_rate_seconds(change->taken, profile->host_to_device);
}

/* From the page cache where all that is read again and again stays there. */
static double read_seconds(const struct profile *profile, const struct change *change)
{
    double rate = profile->disk_read;
    if (change->file <= profile->cache_bytes)
        rate = fmax(rate, profile->page_cache_read);
    return profile_rate_seconds(change->read, rate);
}

double change_reload_seconds(const struct profile *profile, const struct change *change)
{
    return fmax(read_seconds(profile, change),
                profile_rate_seconds(change->taken, profile->repack) +
                    change_link_seconds(profile, change));
}

/* Reading goes on beside the rest; a backup that fits in the host's memory is there
 * (granule_reader.h). */
double change_upload_seconds(const struct profile *profile, const struct change *change,
                             bool is_packed)
{
    struct work_shape dequantize = {
        .kind = WORK_DEQUANTIZE, .dtype = DTYPE_INT4, .dims = {(int64_t)change->values}};
    double device =
        profile_rate_seconds(change->taken, profile->check) + change_link_seconds(profile, change);
    if (!is_packed)
        device += profile_work_seconds(profile, &dequantize);
    bool is_in_memory = change->backup > 0 && change->backup <= profile->host_bytes;
    return is_in_memory ? device : fmax(read_seconds(profile, change), device);
}
