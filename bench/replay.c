/* How well a recording tells the time of the run that it is of; see bench/README.md.
 *
 * Each file is replayed as it was recorded: one compute slot for all ranks, everything as long as
 * it took. The wall time is that of the recorded run, from its first row to its last. What is
 * missing from the replay is in no node: threads that wake each other. */
#include <stdio.h>
#include <stdlib.h>

#include "base/system.h"
#include "head.h"
#include "replay/simulate.h"

static void check(enum status status, const struct error *err)
{
    if (status == STATUS_OK)
        return;
    fprintf(stderr, "bench_replay: %s\n", err->message);
    exit(1);
}

/* Of lanes of a kind, or of the thread that drives. */
static double seconds_of(const struct recording *recording, enum lane_kind kind, bool is_of_rank)
{
    uint64_t ns = 0;
    for (uint32_t l = 0; l < recording->lane_count; l++) {
        const struct recording_lane *lane = &recording->lanes[l];
        for (uint32_t n = 0; n < lane->count; n++) {
            if (lane->kind == kind && (lane->rank >= 0) == is_of_rank)
                ns += recording->nodes[lane->first + n].duration_ns;
        }
    }
    return (double)ns * 1e-9;
}

static void replay(const char *path)
{
    struct recording recording;
    struct simulation simulation;
    struct error err;
    check(recording_read(&recording, path, &err), &err);
    double begin = system_seconds();
    check(simulate(&simulation, &(struct simulation_params){.recording = &recording}, &err), &err);
    printf("%9.3f  %9.3f  %+6.1f %%  %9.3f %9.3f %9.3f %9.3f  %8u  %7.2f  %s\n",
           recording.wall_seconds, simulation.seconds,
           100 * (simulation.seconds / recording.wall_seconds - 1),
           seconds_of(&recording, LANE_STREAM, true), seconds_of(&recording, LANE_LOW, true),
           seconds_of(&recording, LANE_READS, true), seconds_of(&recording, LANE_HOST, false),
           recording.node_count, system_seconds() - begin, path);
    simulation_deinit(&simulation);
    recording_deinit(&recording);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: bench_replay RECORDING...\n");
        return 1;
    }
    bench_print_head(argc, argv);
    printf("#  wall s   replay s             streams s     low s   reads s  driver s     nodes  "
           "in s\n");
    for (int i = 1; i < argc; i++)
        replay(argv[i]);
    return 0;
}
