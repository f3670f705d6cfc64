/* Calls that do not fit one another end the run on all ranks with one sentence that names two of
 * them, and nothing is copied. */
#include <criterion/criterion.h>
#include <string.h>

#include "comm_tools.h"

#define RANKS 3
#define BYTES 256

/* What a rank calls with, in its own memory: 0xAA where something could arrive. */
struct desk {
    struct comm *comm;
    struct stream *stream;
    int rank;
    int64_t counts[2][RANKS], offsets[RANKS];
    struct comm_message messages[2][4];
    unsigned char in[BYTES], out[BYTES];
};

static void gather(struct desk *desk, int64_t own_view_of_1, int tag)
{
    memcpy(desk->counts[0], (int64_t[]){4, own_view_of_1, 0}, sizeof desk->counts[0]);
    comm_all_gather(desk->comm, desk->stream,
                    &(struct comm_all_gather){desk->out, desk->in, desk->counts[0], tag});
}

static void scatter(struct desk *desk, int64_t own_view_of_1, int tag)
{
    memcpy(desk->counts[0], (int64_t[]){4, own_view_of_1, 0}, sizeof desk->counts[0]);
    comm_reduce_scatter(
        desk->comm, desk->stream,
        &(struct comm_reduce_scatter){(float *)desk->out, (float *)desk->in, desk->counts[0], tag});
}

static void reduce(struct desk *desk, int64_t count)
{
    comm_all_reduce(desk->comm, desk->stream,
                    &(struct comm_all_reduce){(float *)desk->out, (float *)desk->in, count, 2});
}

static void to_all(struct desk *desk, int64_t to_2, int64_t from_0)
{
    memcpy(desk->counts[0], (int64_t[]){1, 2, to_2}, sizeof desk->counts[0]);
    memcpy(desk->counts[1], (int64_t[]){from_0, desk->rank + 1, desk->rank + 1},
           sizeof desk->counts[1]);
    comm_all_to_all_v(desk->comm, desk->stream,
                      &(struct comm_all_to_all_v){desk->out, desk->in, desk->counts[0],
                                                  desk->offsets, desk->counts[1], desk->offsets,
                                                  3});
}

static void exchange(struct desk *desk, int send_count, int receive_count)
{
    comm_exchange(desk->comm, desk->stream,
                  &(struct comm_exchange){desk->messages[0], desk->messages[1], send_count,
                                          receive_count, 15});
}

static void send(struct desk *desk, int i, int to, int64_t bytes)
{
    desk->messages[0][i] = (struct comm_message){to, desk->in, bytes};
}

static void receive(struct desk *desk, int i, int from, int64_t bytes)
{
    desk->messages[1][i] = (struct comm_message){from, desk->out + 10 * i, bytes};
}

/* ---- Each of these is called at every rank ----------------------------------------------------
 */

static void other_operation(struct desk *desk)
{
    if (desk->rank == 2)
        scatter(desk, 4, 0);
    else
        gather(desk, 4, 0);
}

static void other_order(struct desk *desk)
{
    if (desk->rank != 1)
        reduce(desk, 5);
    gather(desk, 4, 0);
    if (desk->rank == 1)
        reduce(desk, 5);
}

static void other_tag(struct desk *desk)
{
    gather(desk, 4, desk->rank == 0 ? 15 : 1);
}

static void other_count_in_gather(struct desk *desk)
{
    gather(desk, desk->rank == 2 ? 5 : 4, 0);
}

static void other_count_in_scatter(struct desk *desk)
{
    scatter(desk, desk->rank == 0 ? 5 : 4, 0);
}

static void other_count_in_reduce(struct desk *desk)
{
    reduce(desk, desk->rank == 1 ? 33 : 32);
}

static void negative_count(struct desk *desk)
{
    gather(desk, -4, 0);
}

static void negative_count_in_reduce(struct desk *desk)
{
    reduce(desk, -1);
}

static void receiver_expects_less(struct desk *desk)
{
    to_all(desk, 3, desk->rank + (desk->rank == 2 ? 0 : 1));
}

static void sender_has_less(struct desk *desk)
{
    to_all(desk, desk->rank == 1 ? 2 : 3, desk->rank + 1);
}

/* From rank 0 to rank 2: two messages of 3 and 4 bytes. */
static void exchange_of(struct desk *desk, int64_t first, int64_t second, int receive_count)
{
    send(desk, 0, 2, 3);
    send(desk, 1, 2, 4);
    receive(desk, 0, 0, first);
    receive(desk, 1, 0, second);
    exchange(desk, desk->rank == 0 ? 2 : 0, desk->rank == 2 ? receive_count : 0);
}

static void message_of_other_size(struct desk *desk)
{
    exchange_of(desk, 3, 5, 2);
}

static void messages_in_other_order(struct desk *desk)
{
    exchange_of(desk, 4, 3, 2);
}

static void message_without_receive(struct desk *desk)
{
    exchange_of(desk, 3, 4, 1);
}

static void message_without_send(struct desk *desk)
{
    receive(desk, 2, 1, 4);
    exchange_of(desk, 3, 4, 3);
}

static void message_to_nobody(struct desk *desk)
{
    send(desk, 0, 3, 4);
    exchange(desk, desk->rank == 1, 0);
}

static void message_of_negative_size(struct desk *desk)
{
    receive(desk, 0, 1, -4);
    exchange(desk, 0, desk->rank == 1);
}

#define OF "of ranks 0-2 "

static const struct misfit {
    const char *name;
    void (*call)(struct desk *desk);
    const char *sentence;
} misfits[] = {
    {"other operation", other_operation,
     "rank 2: reduce-scatter number 1 " OF "(tag \"rows\") meets all-gather number 1 " OF
     "(tag \"rows\") of rank 0"},
    {"other order", other_order,
     "rank 1: all-gather number 1 " OF "(tag \"rows\") meets all-reduce number 1 " OF
     "(tag \"parts\") of rank 0"},
    {"other tag", other_tag,
     "rank 1: all-gather number 1 " OF "(tag \"ids\") meets all-gather number 1 " OF
     "(tag 15) of rank 0"},
    {"other count in a gather", other_count_in_gather,
     "rank 2: all-gather number 1 " OF "(tag \"rows\") has a count of 5 for rank 1, at rank 0 it "
     "is 4"},
    {"other count in a scatter", other_count_in_scatter,
     "rank 1: reduce-scatter number 1 " OF "(tag \"rows\") has a count of 4 for rank 1, at rank 0 "
     "it is 5"},
    {"other count in a reduce", other_count_in_reduce,
     "rank 1: all-reduce number 1 " OF "(tag \"parts\") has a count of 33, at rank 0 it is 32"},
    {"negative count", negative_count,
     "rank 0: all-gather number 1 " OF "(tag \"rows\") has a count of -4 for rank 1, at rank 0 it "
     "is -4"},
    {"negative count in a reduce", negative_count_in_reduce,
     "rank 0: all-reduce number 1 " OF "(tag \"parts\") has a count of -1, at rank 0 it is -1"},
    {"receiver expects less", receiver_expects_less,
     "rank 2: all-to-all-v number 1 " OF "(tag \"logits\") receives 2 bytes from rank 0, which "
     "sends 3"},
    {"sender has less", sender_has_less,
     "rank 2: all-to-all-v number 1 " OF "(tag \"logits\") receives 3 bytes from rank 1, which "
     "sends 2"},
    {"message of other size", message_of_other_size,
     "rank 2: exchange number 1 " OF "(tag 15) has receive 1 of 5 bytes, send 1 of rank 0 has 4"},
    {"messages in other order", messages_in_other_order,
     "rank 2: exchange number 1 " OF "(tag 15) has receive 0 of 4 bytes, send 0 of rank 0 has 3"},
    {"message without receive", message_without_receive,
     "rank 2: exchange number 1 " OF "(tag 15) has no receive for send 1 of rank 0"},
    {"message without send", message_without_send,
     "rank 2: exchange number 1 " OF "(tag 15) has receive 2 for which rank 1 has no send"},
    {"message to nobody", message_to_nobody,
     "rank 1: exchange number 1 " OF "(tag 15) has send 0 with member 3, of 3 members"},
    {"message of negative size", message_of_negative_size,
     "rank 1: exchange number 1 " OF "(tag 15) has receive 0 of -4 bytes"},
};
#define MISFIT_COUNT (int)(sizeof misfits / sizeof misfits[0])

struct room {
    struct box *box;
    const struct misfit *misfit;
    struct desk desks[RANKS];
    struct error said[RANKS];
};

/* Every rank's stream reports it. */
static enum status room_rank(void *context, int rank, struct error *err)
{
    struct room *room = context;
    struct desk *desk = &room->desks[rank];
    struct device *device = box_device(room->box, rank);
    desk->rank = rank;
    desk->stream = device->stream;
    memset(desk->out, 0xAA, sizeof desk->out);
    room->misfit->call(desk);
    enum status status = device->ops->synchronize(device->stream, err);
    room->said[rank].status = status;
    if (status != STATUS_OK)
        room->said[rank] = *err;
    return STATUS_OK;
}

static void check_said(const struct room *room, const struct error *cause)
{
    const char *name = room->misfit->name;
    cr_assert_str_eq(cause->message, room->misfit->sentence, "%s: %s", name, cause->message);
    for (int r = 0; r < RANKS; r++) {
        cr_assert_eq(room->said[r].status, STATUS_INTERNAL, "%s: rank %d", name, r);
        cr_assert_str_eq(room->said[r].message, cause->message, "%s: rank %d", name, r);
        for (int i = 0; i < BYTES; i++)
            cr_assert_eq(room->desks[r].out[i], 0xAA, "%s: rank %d was written", name, r);
        cr_assert_eq(comm_domain_bytes(box_domain(room->box), r, 0), 0);
    }
}

Test(misfits, end_the_run_and_name_two_ranks)
{
    static struct room room;
    for (int i = 0; i < MISFIT_COUNT; i++) {
        struct comm *comms[RANKS];
        struct error err;
        memset(&room, 0, sizeof room);
        room.misfit = &misfits[i];
        room.box = test_box_open(RANKS, FOREVER);
        test_comm_create(comms, room.box, RANKS);
        for (int r = 0; r < RANKS; r++)
            room.desks[r].comm = comms[r];
        cr_assert_eq(box_run(room.box, room_rank, &room, &err), STATUS_INTERNAL, "%s",
                     room.misfit->name);
        check_said(&room, &err);
        test_comms_destroy(comms, RANKS);
        box_close(room.box);
    }
}

/* ---- One communicator on two streams that nothing orders --------------------------------------
 */

struct crossing {
    struct box *box;
    struct comm *comms[2];
};

static void one_byte_each(struct comm *comm, struct stream *stream, char *out)
{
    static const int64_t counts[2] = {1, 1};
    comm_all_gather(comm, stream,
                    &(struct comm_all_gather){out, out + comm_member(comm), counts, 0});
}

/* A stream that is held until the run has ended. */
static enum status until_ended(void *argument, struct error *err)
{
    const struct comm_domain *domain = *(const struct comm_domain **)argument;
    (void)err;
    while (comm_domain_failure(domain, NULL) == STATUS_OK)
        sleep_microseconds(1000);
    return STATUS_OK;
}

static enum status crossing_rank(void *context, int rank, struct error *err)
{
    struct crossing *crossing = context;
    static char out[2][2];
    struct device *device = box_device(crossing->box, rank);
    struct stream *beside;
    TRY(device->ops->stream_create(device, &beside, STREAM_NORMAL, err));
    const struct comm_domain *domain = box_domain(crossing->box);
    if (rank == 0)
        device->ops->call(device->stream, until_ended, &domain, sizeof domain);
    one_byte_each(crossing->comms[rank], device->stream, out[rank]);
    one_byte_each(crossing->comms[rank], rank == 0 ? beside : device->stream, out[rank]);
    enum status status = device->ops->synchronize(beside, err);
    if (status == STATUS_OK)
        status = device->ops->synchronize(device->stream, err);
    device->ops->stream_destroy(device, beside);
    return status;
}

Test(misfits, of_two_streams)
{
    struct crossing crossing = {.box = test_box_open(2, FOREVER)};
    struct error err;
    test_comm_create(crossing.comms, crossing.box, 2);
    cr_assert_eq(box_run(crossing.box, crossing_rank, &crossing, &err), STATUS_INTERNAL);
    cr_assert_str_eq(err.message, "rank 0: all-gather number 2 of ranks 0-1 (tag \"rows\") runs "
                                  "when number 1 has not finished");
    test_comms_destroy(crossing.comms, 2);
    box_close(crossing.box);
}
