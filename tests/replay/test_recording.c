/* The file comes back as it was written, and nothing that does not hold together comes in. */
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/disk.h"
#include "base/file.h"
#include "base/memory.h"
#include "builder.h"

static struct builder builder;
static char folder[] = "/tmp/phasor-recording-XXXXXX";
static char path[64];

static void begin(void)
{
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/r.bin", folder);
    build_example(&builder);
}

static void end(void)
{
    build_end(&builder);
    unlink(path);
    cr_expect_eq(rmdir(folder), 0, "something is left beside the recording");
}

static void write_it(void)
{
    struct error err;
    cr_assert_eq(recording_write(&builder.recording, path, &err), STATUS_OK, "%s", err.message);
}

static char *read_bytes(size_t *length)
{
    char *bytes;
    struct error err;
    cr_assert_eq(file_read_whole(&bytes, length, path, 1 << 20, &err), STATUS_OK);
    return bytes;
}

/* ---- The file -------------------------------------------------------------------------------- */

TestSuite(recording_file, .init = begin, .fini = end);

Test(recording_file, comes_back_as_it_was)
{
    struct recording found;
    struct error err;
    size_t length, again;
    write_it();
    char *bytes = read_bytes(&length);
    cr_assert_eq(recording_read(&found, path, &err), STATUS_OK, "%s", err.message);
    const struct recording *wanted = &builder.recording;
    cr_assert_eq(found.rank_count, wanted->rank_count);
    cr_assert_eq(found.wall_seconds, wanted->wall_seconds);
    cr_assert_str_eq(found.about, wanted->about);
    cr_assert_str_eq(found.strings[0], "thing");
    cr_assert_str_eq(found.stage_names[0], "stage");
    cr_assert_str_eq(found.tag_names[0], "tag");
#define EQUAL(array, count)                                                                        \
    cr_assert_eq(found.count, wanted->count);                                                      \
    cr_assert_arr_eq(found.array, wanted->array, wanted->count * sizeof *wanted->array)
    EQUAL(lanes, lane_count);
    EQUAL(nodes, node_count);
    EQUAL(needs, need_count);
    EQUAL(collectives, collective_count);
    EQUAL(groups, group_count);
    EQUAL(counts, count_count);
    cr_assert_eq(recording_write(&found, path, &err), STATUS_OK);
    char *second = read_bytes(&again);
    cr_assert(again == length && memcmp(bytes, second, length) == 0);
    recording_deinit(&found);
    memory_free(bytes);
    memory_free(second);
}

static enum status parse(const char *bytes, size_t length, struct error *err)
{
    struct recording found;
    /* In just as much memory, so that a read beyond it is found. */
    char *copy = memory_alloc_raw(length, 1);
    memcpy(copy, bytes, length);
    enum status status = recording_parse(&found, copy, length, "r.bin", err);
    if (status == STATUS_OK)
        recording_deinit(&found);
    memory_free(copy);
    return status;
}

Test(recording_file, a_part_of_it_is_refused)
{
    size_t length;
    struct error err;
    write_it();
    char *bytes = read_bytes(&length);
    for (size_t left = 0; left < length; left++)
        cr_assert_eq(parse(bytes, left, &err), STATUS_FORMAT, "%zu bytes", left);
    memory_free(bytes);
}

/* Every byte wrong: by its checksum; and with the checksum put right, refused or sound. */
Test(recording_file, a_wrong_byte_is_refused)
{
    size_t length;
    struct error err;
    uint64_t live = memory_counters_get().live_count;
    int refused = 0;
    write_it();
    char *bytes = read_bytes(&length);
    for (size_t at = 0; at < length; at++) {
        for (int bit = 0; bit < 8; bit += 7) {
            bytes[at] ^= (char)(1 << bit);
            cr_assert_neq(parse(bytes, length, &err), STATUS_OK, "byte %zu", at);
            if (at < length - 8) {
                uint64_t old, checksum = XXH3_64bits(bytes, length - 8);
                memcpy(&old, bytes + length - 8, 8);
                memcpy(bytes + length - 8, &checksum, 8);
                refused += parse(bytes, length, &err) != STATUS_OK;
                memcpy(bytes + length - 8, &old, 8);
            }
            bytes[at] ^= (char)(1 << bit);
        }
    }
    cr_assert(refused > 800, "only %d were refused", refused);
    memory_free(bytes);
    cr_assert_eq(memory_counters_get().live_count, live);
}

Test(recording_file, allocations_may_fail)
{
    struct recording found;
    struct error err;
    enum status status = STATUS_NO_MEMORY;
    write_it();
    uint64_t live = memory_counters_get().live_count, n = 0;
    while (status != STATUS_OK && ++n < 1000) {
        memory_fail_at(n, 0);
        status = recording_read(&found, path, &err);
        memory_fail_at(0, 0);
        cr_assert(status == STATUS_OK ||
                  (status == STATUS_NO_MEMORY && memory_counters_get().live_count == live));
    }
    cr_assert(n > 20 && n < 1000);
    recording_deinit(&found);
}

static void nothing(void *context, enum disk_op op)
{
    (void)context;
    (void)op;
}

static int fail_nth(void *context, enum disk_op op, size_t *length)
{
    int *left = context;
    (void)op;
    (void)length;
    return --*left == 0 ? ENOSPC : 0;
}

/* Whichever operation fails, what was there stays, and nothing is left beside it. */
Test(recording_file, is_whole_or_not_there)
{
    struct error err;
    struct recording found;
    enum status status = STATUS_IO;
    int n = 0;
    write_it();
    while (status != STATUS_OK && ++n < 1000) {
        int left = n;
        struct disk_hooks hooks = {.before = fail_nth, .after = nothing, .context = &left};
        disk_hooks_set(&hooks);
        status = recording_write(&builder.recording, path, &err);
        disk_hooks_set(NULL);
        cr_assert(status == STATUS_OK || status == STATUS_IO);
        cr_assert_eq(recording_read(&found, path, &err), STATUS_OK);
        recording_deinit(&found);
    }
    cr_assert(n > 10 && n < 1000);
}

/* A file in the place of /dev/null would be everybody's. Devices of the test's own: only who may
 * make them could replace one. */
Test(recording_file, a_device_stays_one)
{
    enum { MEMORY = 1, NOTHING = 3, FULL = 7 }; /* numbers of Linux */
    static const struct {
        unsigned minor;
        enum status status;
    } cases[] = {{NOTHING, STATUS_OK}, {FULL, STATUS_IO}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error err;
        struct stat about;
        if (mknod(path, S_IFCHR | 0600, makedev(MEMORY, cases[i].minor)) != 0)
            cr_skip_test("no devices can be made here: %s", strerror(errno));
        enum status status = recording_write(&builder.recording, path, &err);
        cr_assert_eq(stat(path, &about), 0);
        cr_assert(S_ISCHR(about.st_mode), "a file is in the place of a device");
        cr_assert_eq(status, cases[i].status);
        cr_assert_eq(unlink(path), 0);
    }
}

Test(recording_file, where_it_cannot_be)
{
    struct error err;
    struct recording found;
    char missing[96];
    snprintf(missing, sizeof missing, "%s/no/r.bin", folder);
    cr_assert_eq(recording_write(&builder.recording, missing, &err), STATUS_NOT_FOUND);
    cr_assert_eq(recording_read(&found, missing, &err), STATUS_NOT_FOUND);
    cr_assert(strstr(err.message, missing) != NULL);
    builder.recording.nodes[0].kind = 77;
    cr_assert_eq(recording_write(&builder.recording, path, &err), STATUS_FORMAT);
    cr_assert_eq(access(path, F_OK), -1);
}

/* ---- What is refused ------------------------------------------------------------------------- */

static struct recording *r = &builder.recording;

static struct recording_node *node_of_kind(enum node_kind kind)
{
    for (uint32_t n = 0;; n++) {
        if (r->nodes[n].kind == kind)
            return &r->nodes[n];
    }
}

static struct recording_collective *call_of(enum collective_op op)
{
    for (uint32_t n = 0;; n++) {
        if (r->collectives[n].op == op)
            return &r->collectives[n];
    }
}

/* An object of so many bytes. */
static void about_of(size_t length)
{
    memory_free(r->about);
    r->about = memory_alloc_raw(length + 1, 1);
    memset(r->about, ' ', length);
    r->about[0] = '{';
    r->about[length - 1] = '}';
    r->about[length] = 0;
}

/* More lanes, without nodes, up to so many. */
static void lanes_of(uint32_t count)
{
    r->lanes = memory_resize(r->lanes, count, sizeof *r->lanes);
    for (; r->lane_count < count; r->lane_count++)
        r->lanes[r->lane_count] = (struct recording_lane){.kind = LANE_HOST, .rank = -1};
}

/* Each spoils one thing. */
#define SPOIL(name, change)                                                                        \
    static void name(void)                                                                         \
    {                                                                                              \
        change;                                                                                    \
    }
SPOIL(no_ranks, r->rank_count = 0)
SPOIL(many_ranks, r->rank_count = 65)
SPOIL(wall, r->wall_seconds = -1)
SPOIL(wall_nan, r->wall_seconds = 0.0 / 0.0)
SPOIL(about_list, r->about[0] = '[')
SPOIL(about_long, about_of(RECORDING_ABOUT_BYTES_MAX + 1))
SPOIL(lanes_many, lanes_of(RECORDING_LANES_MAX(2) + 1))
SPOIL(control, r->strings[0][1] = '\n')
SPOIL(no_utf8, r->tag_names[0][1] = (char)0xFF)
SPOIL(group_empty, r->groups[0].size = 0)
SPOIL(group_large, r->groups[0].size = 3)
SPOIL(group_rank, r->groups[0].ranks[1] = 2)
SPOIL(group_twice, r->groups[0].ranks[1] = 1)
SPOIL(lane_kind, r->lanes[0].kind = LANE_KIND_COUNT)
SPOIL(lane_rank, r->lanes[1].rank = -1)
SPOIL(lane_high_rank, r->lanes[1].rank = 2)
SPOIL(lane_name, r->lanes[1].name = 1)
SPOIL(lane_far, r->lanes[4].count++)
SPOIL(lane_wraps, r->lanes[4].first = UINT32_MAX)
SPOIL(lanes_overlap, r->lanes[4].first--)
SPOIL(lane_short, r->lanes[4].count--)
SPOIL(node_work, r->nodes[0].work = WORK_KIND_COUNT)
SPOIL(node_phase, r->nodes[0].phase = RECORD_PHASE_COUNT)
SPOIL(node_name, r->nodes[0].name = 1)
SPOIL(node_stage, r->nodes[0].stage = 1)
SPOIL(node_layer, r->nodes[0].layer = -2)
SPOIL(node_dims, r->nodes[0].dims[4] = -1)
SPOIL(node_to_host, node_of_kind(NODE_COMPUTE)->to_host = 1)
SPOIL(copy_to_host, node_of_kind(NODE_COPY)->to_host = 2)
SPOIL(node_call, node_of_kind(NODE_COLLECTIVE)->collective = 10)
SPOIL(node_no_call, node_of_kind(NODE_COMPUTE)->collective = 1)
SPOIL(call_twice, node_of_kind(NODE_COLLECTIVE)->collective++)
SPOIL(wait_lasts, node_of_kind(NODE_WAIT)->duration_ns = 1)
SPOIL(durations, r->nodes[0].duration_ns = node_of_kind(NODE_COPY)->duration_ns = 1ULL << 62)
SPOIL(bytes, r->nodes[0].bytes = UINT64_MAX)
SPOIL(flops, r->nodes[0].flops = 1ULL << 63)
SPOIL(needs_far, node_of_kind(NODE_COPY)->need_first = r->need_count)
SPOIL(needs_more, r->need_count++)
SPOIL(need_far, r->needs[0] = r->node_count)
SPOIL(need_self,
      r->needs[node_of_kind(NODE_COPY)->need_first] = (uint32_t)(node_of_kind(NODE_COPY) -
                                                                 r->nodes))
SPOIL(call_group, r->collectives[0].group = 1)
SPOIL(call_op, r->collectives[0].op = COLLECTIVE_OP_COUNT)
SPOIL(call_member, r->collectives[0].member = 2)
SPOIL(call_other_member, r->collectives[0].member ^= 1)
SPOIL(call_tag, r->collectives[0].tag = 1)
SPOIL(call_counts, r->collectives[0].count_first = r->count_count - 1)
SPOIL(call_number, r->collectives[0].number = 2)
SPOIL(call_number_0, r->collectives[0].number = 0)
SPOIL(call_ops_differ, r->collectives[0].op = COLLECTIVE_OP_REDUCE_SCATTER)
SPOIL(counts_differ, r->counts[call_of(COLLECTIVE_OP_ALL_GATHER)->count_first]++)
SPOIL(count_below, r->counts[0] = -1)
SPOIL(counts_huge, r->counts[0] = r->counts[1] = INT64_MAX)
SPOIL(reduces_two, r->counts[call_of(COLLECTIVE_OP_ALL_REDUCE)->count_first + 1] = 1)
static void sends_to_itself(void)
{
    const struct recording_collective *call = call_of(COLLECTIVE_OP_ALL_TO_ALL);
    r->counts[call->count_first + call->member] = 1;
}
SPOIL(calls_fewer, r->groups[0].size = 1)
/* A read waits for what its copy lets go on. */
SPOIL(circle, r->needs[node_of_kind(NODE_READ)->need_first] = builder.node[3])
#undef SPOIL

TestSuite(recording_check, .init = begin, .fini = end);

Test(recording_check, refuses_what_does_not_hold_together)
{
    static const struct {
        const char *name, *word;
        void (*spoil)(void);
    } cases[] = {
#define CASE(spoil, word) {#spoil, word, spoil}
        CASE(no_ranks, "ranks"),
        CASE(many_ranks, "ranks"),
        CASE(wall, "wall"),
        CASE(wall_nan, "wall"),
        CASE(about_list, "JSON"),
        CASE(about_long, "about has 1048577 bytes"),
        CASE(lanes_many, "48 lanes of 2 ranks, found 49"),
        CASE(control, "string 0"),
        CASE(no_utf8, "tag 0"),
        CASE(group_empty, "group 0"),
        CASE(group_large, "group 0"),
        CASE(group_rank, "group 0"),
        CASE(group_twice, "twice"),
        CASE(lane_kind, "lane 0"),
        CASE(lane_rank, "lane 1"),
        CASE(lane_high_rank, "lane 1"),
        CASE(lane_name, "lane 1"),
        CASE(lane_far, "lane 4"),
        CASE(lane_wraps, "lane 4"),
        CASE(lanes_overlap, "lane"),
        CASE(lane_short, "no lane"),
        CASE(node_work, "node 0"),
        CASE(node_phase, "node 0"),
        CASE(node_name, "name"),
        CASE(node_stage, "stage"),
        CASE(node_layer, "layer"),
        CASE(node_dims, "dimension"),
        CASE(node_to_host, "no meaning"),
        CASE(copy_to_host, "no meaning"),
        CASE(node_call, "collective"),
        CASE(node_no_call, "collective"),
        CASE(call_twice, "more than one node"),
        CASE(wait_lasts, "wait"),
        CASE(durations, "2^63"),
        CASE(bytes, "2^63"),
        CASE(flops, "2^63"),
        CASE(needs_far, "needs"),
        CASE(needs_more, "needs together"),
        CASE(need_far, "needs one"),
        CASE(need_self, "itself"),
        CASE(call_group, "group"),
        CASE(call_op, "operation"),
        CASE(call_member, "member"),
        CASE(call_other_member, "rank"),
        CASE(call_tag, "tag"),
        CASE(call_counts, "counts"),
        CASE(call_number, "both"),
        CASE(call_number_0, "call 0"),
        CASE(call_ops_differ, "differ"),
        CASE(counts_differ, "differ"),
        CASE(count_below, "below 0"),
        CASE(counts_huge, "2^63"),
        CASE(reduces_two, "more than one"),
        CASE(sends_to_itself, "own member"),
        CASE(calls_fewer, "member"),
        CASE(circle, "circle"),
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct error err = {.message = ""};
        cr_assert_eq(recording_check(r, "r.bin", &err), STATUS_OK);
        cases[c].spoil();
        cr_expect_eq(recording_check(r, "r.bin", &err), STATUS_FORMAT, "%s", cases[c].name);
        cr_expect(strncmp(err.message, "r.bin", 5) == 0 &&
                      strstr(err.message, cases[c].word) != NULL,
                  "%s: %s", cases[c].name, err.message);
        build_end(&builder);
        build_example(&builder);
    }
}

Test(recording_check, takes_as_much_as_is_allowed)
{
    struct error err;
    about_of(RECORDING_ABOUT_BYTES_MAX);
    lanes_of(RECORDING_LANES_MAX(2));
    cr_assert_eq(recording_check(r, "r.bin", &err), STATUS_OK, "%s", err.message);
}

/* Two lanes that call two groups in opposite order wait for one another. */
Test(recording_check, sees_circles_through_meetings)
{
    struct error err;
    uint32_t lanes[2], groups[2];
    build_end(&builder);
    build_begin(&builder, 2);
    for (int rank = 0; rank < 2; rank++)
        lanes[rank] = build_lane(&builder, LANE_STREAM, rank);
    for (int g = 0; g < 2; g++)
        groups[g] = build_group(&builder, 2, (int[]){0, 1});
    for (int rank = 0; rank < 2; rank++) {
        for (int g = 0; g < 2; g++)
            build_collective(&builder, lanes[rank], groups[g], COLLECTIVE_OP_ALL_GATHER,
                             (int64_t[]){1, 1});
    }
    build_finish(&builder);
    struct recording_node *second = &r->nodes[r->lanes[1].first];
    uint32_t call = second[0].collective;
    second[0].collective = second[1].collective;
    second[1].collective = call;
    cr_assert_eq(recording_check(r, "r.bin", &err), STATUS_FORMAT);
    cr_assert_str_eq(err.message, "r.bin: 4 nodes wait for one another in a circle and can never "
                                  "begin; node 1 is the first that waits");
}
