#include "scenario.h"

#include <string.h>

#include "base/checked.h"

#define MARGIN 64

const char *const kind_names[KIND_COUNT] = {
    "all-gather", "reduce-scatter", "all-reduce", "all-to-all-v", "exchange",
};

const char *const profile_names[PROFILE_COUNT] = {
    "nothing", "one", "odd", "uneven", "lone", "large", "random",
};

bool kind_can_be_in_place(enum kind kind)
{
    return kind == ALL_GATHER || kind == REDUCE_SCATTER || kind == ALL_REDUCE;
}

/* ---- How much ---------------------------------------------------------------------------------
 */

static int64_t amount(enum profile profile, int size, int which, struct random *random)
{
    switch (profile) {
    case PROFILE_NOTHING:
        return 0;
    case PROFILE_ONE:
        return 1;
    case PROFILE_ODD:
        return 13 + 2 * which;
    case PROFILE_UNEVEN:
        return which % 2 == 0 ? 0 : 100 * which + 7;
    case PROFILE_LONE:
        return which == size - 1 ? 333 : 0;
    case PROFILE_LARGE:
        return (1 << 20) / size + 40 * which + 5;
    default:
        return random_below(random, 3) == 0 ? 0 : (int64_t)random_below(random, 500);
    }
}

static int64_t sum_of(const int64_t *counts, int count)
{
    int64_t sum = 0;
    for (int i = 0; i < count; i++)
        sum += counts[i];
    return sum;
}

static void place(struct scenario *s, int m, int64_t in_bytes, int64_t out_bytes)
{
    s->places[m].in_at = MARGIN;
    s->places[m].out_at = round_up(MARGIN + in_bytes + MARGIN, MARGIN);
    s->places[m].bytes = s->places[m].out_at + out_bytes + MARGIN;
}

/* `inner` lies in `outer`, `offset` behind its beginning. */
static void place_in(struct scenario *s, int m, bool in_is_inner, int64_t offset,
                     int64_t outer_bytes)
{
    s->places[m].in_at = MARGIN + (in_is_inner ? offset : 0);
    s->places[m].out_at = MARGIN + (in_is_inner ? 0 : offset);
    s->places[m].bytes = MARGIN + outer_bytes + MARGIN;
}

static void gather_or_scatter_make(struct scenario *s, struct random *random)
{
    int64_t width = s->kind == ALL_GATHER ? 1 : (int64_t)sizeof(float);
    for (int m = 0; m < s->size; m++)
        s->counts[m] = amount(s->profile, s->size, m, random);
    int64_t all = sum_of(s->counts, s->size) * width;
    for (int m = 0; m < s->size; m++) {
        int64_t before = sum_of(s->counts, m) * width, own = s->counts[m] * width;
        if (s->in_place)
            place_in(s, m, s->kind == ALL_GATHER, before, all);
        else
            place(s, m, s->kind == ALL_GATHER ? own : all, s->kind == ALL_GATHER ? all : own);
    }
}

static void all_reduce_make(struct scenario *s, struct random *random)
{
    s->counts[0] = amount(s->profile, s->size, s->size - 1, random);
    if (s->profile == PROFILE_LARGE)
        s->counts[0] = (1 << 18) + 37;
    int64_t bytes = s->counts[0] * (int64_t)sizeof(float);
    for (int m = 0; m < s->size; m++) {
        if (s->in_place)
            place_in(s, m, true, 0, bytes);
        else
            place(s, m, bytes, bytes);
    }
}

/* Pieces lie in falling order of the receivers at the sender, and rotated by one at the receiver,
 * with gaps of their own between. */
static void all_to_all_make(struct scenario *s, struct random *random)
{
    int64_t in_bytes[MEMBERS_MAX] = {0}, out_bytes[MEMBERS_MAX] = {0};
    for (int a = 0; a < s->size; a++) {
        for (int b = s->size - 1; b >= 0; b--) {
            int64_t bytes = amount(s->profile, s->size, (a + 2 * b) % s->size, random);
            s->sends[a][b] = s->receives[b][a] = bytes;
            s->send_offsets[a][b] = in_bytes[a] + 3;
            in_bytes[a] += 3 + bytes;
        }
    }
    for (int b = 0; b < s->size; b++) {
        for (int i = 0; i < s->size; i++) {
            int a = (i + 1) % s->size;
            s->receive_offsets[b][a] = out_bytes[b] + 5;
            out_bytes[b] += 5 + s->receives[b][a];
        }
        place(s, b, in_bytes[b], out_bytes[b]);
    }
}

static void exchange_make(struct scenario *s, struct random *random)
{
    int64_t in_bytes[MEMBERS_MAX] = {0}, out_bytes[MEMBERS_MAX] = {0};
    s->message_count = s->profile == PROFILE_NOTHING ? 0 : (int)random_below(random, MESSAGES_MAX);
    for (int i = 0; i < s->message_count; i++) {
        int from = (int)random_below(random, (uint64_t)s->size);
        int to = (int)random_below(random, (uint64_t)s->size);
        s->messages[i].from = from;
        s->messages[i].to = to;
        s->messages[i].bytes = amount(s->profile, s->size, i % s->size, random);
        s->messages[i].from_at = in_bytes[from] + 3;
        s->messages[i].to_at = out_bytes[to] + 5;
        in_bytes[from] += 3 + s->messages[i].bytes;
        out_bytes[to] += 5 + s->messages[i].bytes;
    }
    for (int m = 0; m < s->size; m++)
        place(s, m, in_bytes[m], out_bytes[m]);
}

void scenario_make(struct scenario *out, enum kind kind, enum profile profile, bool in_place,
                   int size, int tag, struct random *random)
{
    *out = (struct scenario){
        .kind = kind,
        .profile = profile,
        .in_place = in_place,
        .size = size,
        .tag = tag,
        .seed = random_next(random),
    };
    if (kind == ALL_GATHER || kind == REDUCE_SCATTER)
        gather_or_scatter_make(out, random);
    else if (kind == ALL_REDUCE)
        all_reduce_make(out, random);
    else if (kind == ALL_TO_ALL_V)
        all_to_all_make(out, random);
    else
        exchange_make(out, random);
}

/* ---- What is there before ---------------------------------------------------------------------
 */

/* Values of very different size, so that the order of a sum shows in its bits. */
static void fill_values(unsigned char *out, int64_t count, struct random *random)
{
    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = random_next(random);
        float value = (float)(random_unit(bits) - 0.5) * (float)(1 << (bits & 15));
        memcpy(out + i * (int64_t)sizeof value, &value, sizeof value);
    }
}

void scenario_fill(const struct scenario *s, int member, unsigned char *image)
{
    const struct image_place *at = &s->places[member];
    struct random random = {.seed = random_at(s->seed, (uint64_t)member, 0)};
    for (int64_t i = 0; i < at->bytes; i += 8) {
        uint64_t bits = random_next(&random);
        memcpy(image + i, &bits, (size_t)(at->bytes - i < 8 ? at->bytes - i : 8));
    }
    if (s->kind == REDUCE_SCATTER)
        fill_values(image + at->in_at, sum_of(s->counts, s->size), &random);
    if (s->kind == ALL_REDUCE)
        fill_values(image + at->in_at, s->counts[0], &random);
}

/* ---- What must be there after -----------------------------------------------------------------
 */

static void gather_expect(const struct scenario *s, unsigned char *out,
                          unsigned char *const *images)
{
    for (int m = 0; m < s->size; m++) {
        memcpy(out, images[m] + s->places[m].in_at, (size_t)s->counts[m]);
        out += s->counts[m];
    }
}

/* Values first .. first + count - 1 of all members' `in`, added in their order. Margins are a line
 * of the cache, so all values lie as floats must. */
static void sum_expect(const struct scenario *s, unsigned char *out, unsigned char *const *images,
                       int64_t first, int64_t count)
{
    float *sums = (float *)out;
    for (int m = 0; m < s->size; m++) {
        const float *values = (const float *)(images[m] + s->places[m].in_at) + first;
        for (int64_t i = 0; i < count; i++)
            sums[i] = m == 0 ? values[i] : sums[i] + values[i];
    }
}

static void all_to_all_expect(const struct scenario *s, int member, unsigned char *out,
                              unsigned char *const *images)
{
    for (int m = 0; m < s->size; m++)
        memcpy(out + s->receive_offsets[member][m],
               images[m] + s->places[m].in_at + s->send_offsets[m][member],
               (size_t)s->sends[m][member]);
}

static void exchange_expect(const struct scenario *s, int member, unsigned char *out,
                            unsigned char *const *images)
{
    for (int i = 0; i < s->message_count; i++) {
        int from = s->messages[i].from;
        if (s->messages[i].to == member)
            memcpy(out + s->messages[i].to_at,
                   images[from] + s->places[from].in_at + s->messages[i].from_at,
                   (size_t)s->messages[i].bytes);
    }
}

void scenario_expect(const struct scenario *s, int member, unsigned char *image,
                     unsigned char *const *images)
{
    unsigned char *out = image + s->places[member].out_at;
    if (s->kind == ALL_GATHER)
        gather_expect(s, out, images);
    else if (s->kind == REDUCE_SCATTER)
        sum_expect(s, out, images, sum_of(s->counts, member), s->counts[member]);
    else if (s->kind == ALL_REDUCE)
        sum_expect(s, out, images, 0, s->counts[0]);
    else if (s->kind == ALL_TO_ALL_V)
        all_to_all_expect(s, member, out, images);
    else
        exchange_expect(s, member, out, images);
}

/* The parts are those of comm_part, whose sums test_parts.c checks on its own. */
static uint64_t all_reduce_bytes(const struct scenario *s, int member)
{
    int64_t first, part;
    comm_part(&first, &part, s->counts[0], s->size, member);
    return (uint64_t)(4 * (s->counts[0] - part) + 4 * part * (s->size - 1));
}

uint64_t scenario_bytes(const struct scenario *s, int member)
{
    int64_t bytes = 0;
    if (s->kind == ALL_GATHER)
        return (uint64_t)(s->counts[member] * (s->size - 1));
    if (s->kind == REDUCE_SCATTER)
        return (uint64_t)(4 * (sum_of(s->counts, s->size) - s->counts[member]));
    if (s->kind == ALL_REDUCE)
        return all_reduce_bytes(s, member);
    for (int m = 0; s->kind == ALL_TO_ALL_V && m < s->size; m++)
        bytes += m == member ? 0 : s->sends[member][m];
    for (int i = 0; s->kind == EXCHANGE && i < s->message_count; i++) {
        if (s->messages[i].from == member && s->messages[i].to != member)
            bytes += s->messages[i].bytes;
    }
    return (uint64_t)bytes;
}

/* ---- The call ---------------------------------------------------------------------------------
 */

static void exchange_post(struct scenario *s, struct comm *comm, struct stream *stream,
                          unsigned char *in, unsigned char *out)
{
    int self = comm_member(comm);
    struct comm_exchange op = {
        .sends = s->send_lists[self], .receives = s->receive_lists[self], .tag = s->tag};
    for (int i = 0; i < s->message_count; i++) {
        if (s->messages[i].from == self)
            s->send_lists[self][op.send_count++] = (struct comm_message){
                s->messages[i].to, in + s->messages[i].from_at, s->messages[i].bytes};
    }
    /* In another order than the sends: by falling peers, each peer's in theirs. */
    for (int from = s->size - 1; from >= 0; from--) {
        for (int i = 0; i < s->message_count; i++) {
            if (s->messages[i].from == from && s->messages[i].to == self)
                s->receive_lists[self][op.receive_count++] =
                    (struct comm_message){from, out + s->messages[i].to_at, s->messages[i].bytes};
        }
    }
    comm_exchange(comm, stream, &op);
}

void scenario_post(struct scenario *s, struct comm *comm, struct stream *stream,
                   unsigned char *block)
{
    int self = comm_member(comm);
    unsigned char *in = block + s->places[self].in_at, *out = block + s->places[self].out_at;
    if (s->kind == ALL_GATHER)
        comm_all_gather(comm, stream, &(struct comm_all_gather){out, in, s->counts, s->tag});
    else if (s->kind == REDUCE_SCATTER)
        comm_reduce_scatter(
            comm, stream,
            &(struct comm_reduce_scatter){(float *)out, (float *)in, s->counts, s->tag});
    else if (s->kind == ALL_REDUCE)
        comm_all_reduce(comm, stream,
                        &(struct comm_all_reduce){(float *)out, (float *)in, s->counts[0], s->tag});
    else if (s->kind == ALL_TO_ALL_V)
        comm_all_to_all_v(comm, stream,
                          &(struct comm_all_to_all_v){out, in, s->sends[self],
                                                      s->send_offsets[self], s->receives[self],
                                                      s->receive_offsets[self], s->tag});
    else
        exchange_post(s, comm, stream, in, out);
}
