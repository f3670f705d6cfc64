/* The ways to join ranks that are shares of the CPU. */
#include "comm_tools.h"
#include "turns.h"

static struct box_params params_of(int rank_count, double patience_seconds)
{
    return (struct box_params){
        .rank_count = rank_count,
        .thread_count = rank_count,
        .patience_seconds = patience_seconds,
        .tag_names = tag_names,
        .tag_count = COMM_TAGS_MAX,
    };
}

static enum status local_open(struct box **out, int rank_count, double patience_seconds,
                              struct error *err)
{
    struct box_params params = params_of(rank_count, patience_seconds);
    return box_open(out, &params, err);
}

/* So slow that copying is seldom longer. */
static const struct comm_links slow_links = {.bytes_per_second = 2e9, .latency_seconds = 20e-6};

static enum status slow_open(struct box **out, int rank_count, double patience_seconds,
                             struct error *err)
{
    struct box_params params = params_of(rank_count, patience_seconds);
    params.links = slow_links;
    return box_open(out, &params, err);
}

/* Of the one box that is open in turns. */
static struct turns turns;

static enum status turns_open_with(struct box **out, int rank_count, double patience_seconds,
                                   const struct comm_links *links, struct error *err)
{
    struct box_params params = params_of(rank_count, patience_seconds);
    params.links = *links;
    turns_init(&turns);
    params.turn = &turns.turn;
    TRY(box_open(out, &params, err));
    turns_begin(&turns, *out);
    return STATUS_OK;
}

static enum status turns_open(struct box **out, int rank_count, double patience_seconds,
                              struct error *err)
{
    return turns_open_with(out, rank_count, patience_seconds, &(struct comm_links){0}, err);
}

static enum status slow_turns_open(struct box **out, int rank_count, double patience_seconds,
                                   struct error *err)
{
    return turns_open_with(out, rank_count, patience_seconds, &slow_links, err);
}

static void turns_close(struct box *box)
{
    box_close(box);
    turns_deinit(&turns);
}

const struct backend backends[] = {
    {.name = "local", .open = local_open, .close = box_close},
    {.name = "slow", .open = slow_open, .close = box_close},
    {.name = "slow, one rank at a time", .open = slow_turns_open, .close = turns_close},
    {.name = "local, one rank at a time", .open = turns_open, .close = turns_close},
};
const int backend_count = sizeof backends / sizeof backends[0];
