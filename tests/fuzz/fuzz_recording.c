/* The file of a recording, whose checksum and length are put right first unless the first byte is
 * odd. What is accepted is replayed, as recorded and on a box: every node begins and ends. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "fuzz.h"
#include "replay/simulate.h"

#define FILE_BYTES_OFFSET 24

static void seal(char *bytes, size_t length)
{
    uint64_t file_bytes = length, checksum;
    if (length < FILE_BYTES_OFFSET + 16)
        return;
    memcpy(bytes + FILE_BYTES_OFFSET, &file_bytes, sizeof file_bytes);
    checksum = XXH3_64bits(bytes, length - sizeof checksum);
    memcpy(bytes + length - sizeof checksum, &checksum, sizeof checksum);
}

/* All on one switch, rings, and one memory of all ranks. */
static void make_box(struct box_model *out, int rank_count)
{
    *out = (struct box_model){.name = "fuzz",
                              .rank_count = rank_count,
                              .end_count = rank_count + 3,
                              .host = rank_count,
                              .disk = rank_count + 1,
                              .link_count = rank_count + 2,
                              .memory_count = 1,
                              .memory_bytes_per_second = {1e9}};
    for (int l = 0; l < out->link_count; l++)
        out->links[l] = (struct box_link){.ends = {l, rank_count + 2},
                                          .bytes_per_second = 1e9,
                                          .latency = 1e-6 * (l % 2),
                                          .is_half_duplex = l % 3 == 0};
    for (int op = 0; op < COLLECTIVE_OP_COUNT; op++)
        out->collectives[op] = (struct box_collective){
            .algorithm = op < COLLECTIVE_OP_ALL_TO_ALL ? ALGORITHM_RING : ALGORITHM_DIRECT,
            .protocol_count = 1,
            .protocols = {{.efficiency = 1}}};
}

static void check_replay(const struct recording *recording, const struct box_model *box)
{
    struct simulation simulation;
    struct error err;
    enum status status = simulate(
        &simulation, &(struct simulation_params){.recording = recording, .box = box}, &err);
    FUZZ_CHECK(status == STATUS_OK);
    FUZZ_CHECK(isfinite(simulation.seconds));
    for (uint32_t node = 0; node < recording->node_count; node++) {
        const struct node_time *time = &simulation.times[node];
        FUZZ_CHECK(time->begin >= 0 && time->begin <= time->end);
        FUZZ_CHECK(time->end <= simulation.seconds);
        FUZZ_CHECK(time->cause == UINT32_MAX || time->cause < recording->node_count);
    }
    simulation_deinit(&simulation);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct fuzz_account account = fuzz_begin(size);
    size_t length = size > 0 ? size - 1 : 0;
    char *bytes = memory_alloc_raw(length, 1);
    struct recording recording;
    struct box_model box;
    struct error err;
    FUZZ_CHECK(bytes != NULL);
    if (length > 0)
        memcpy(bytes, data + 1, length);
    if (size > 0 && data[0] % 2 == 0)
        seal(bytes, length);
    enum status status = recording_parse(&recording, bytes, length, "r.bin", &err);
    memory_free(bytes);
    if (status == STATUS_OK) {
        make_box(&box, recording.rank_count);
        check_replay(&recording, NULL);
        check_replay(&recording, &box);
        recording_deinit(&recording);
    } else {
        fuzz_check_error(status, &err);
    }
    fuzz_end(&account);
    return 0;
}
