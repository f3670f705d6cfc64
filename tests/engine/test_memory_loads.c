/* Whatever way weights come into memory, they are there once: packed from the checkpoint, rounded
 * to int4 on the way, left in the cache of packed weights, mapped from there, or packed again
 * because what lies there is damaged. By phasor's own count and by the system's. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <glob.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/memory.h"
#include "engine/engine.h"
#include "engine_tools.h"
#include "model/synth.h"
#include "rss.h"

#define RANK_COUNT 2
#define MIB        (1ull << 20)

/* What is read ahead of each rank, its threads, what the checkpoint says of its tensors. A second
 * copy of the weights is far more. */
#define BESIDE_BYTES (24 * MIB)

enum loading {
    LOADING_PACKED,
    LOADING_ROUNDED,
    LOADING_WRITTEN,
    LOADING_MAPPED,
    LOADING_REFUSED,
    LOADING_COUNT,
};

/* By all ranks at once. */
struct log_seen {
    atomic_int mapped, left, refused;
};

static void see_log(void *context, enum log_level level, const char *message)
{
    struct log_seen *seen = context;
    (void)level;
    seen->mapped += strstr(message, "packed weights are mapped from") != NULL;
    seen->left += strstr(message, "packed weights will be left in") != NULL;
    seen->refused += strstr(message, "packed again") != NULL;
}

static enum status load(struct log_seen *seen, const char *dir, enum loading loading,
                        struct error *err)
{
    struct engine *engine;
    struct engine_params params = {.model = dir,
                                   .dtype = DTYPE_BF16,
                                   .plan = "tp2|tp2",
                                   .thread_count = RANK_COUNT, /* each reads through a MiB */
                                   .has_int4_experts = loading == LOADING_ROUNDED,
                                   .caches_weights = loading >= LOADING_WRITTEN,
                                   .log = {see_log, seen}};
    seen->mapped = seen->left = seen->refused = 0;
    enum status status = engine_open(&engine, &params, err);
    if (status == STATUS_OK)
        engine_close(engine);
    return status;
}

/* By another process, whose memory is not this one's. It asserts nothing: that is of the test's
 * own process. */
static void leave_weights(const char *dir)
{
    struct log_seen seen;
    struct error err;
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(load(&seen, dir, LOADING_WRITTEN, &err) == STATUS_OK && seen.left == RANK_COUNT ? 0
                                                                                              : 1);
    cr_assert(child > 0 && waitpid(child, &status, 0) == child && status == 0);
}

static void damage_weights(const char *cache)
{
    char pattern[512];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/packed/*.weights", cache);
    cr_assert_eq(glob(pattern, 0, NULL, &found), 0);
    cr_assert_eq(found.gl_pathc, RANK_COUNT);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        FILE *file = fopen(found.gl_pathv[i], "r+");
        cr_assert_not_null(file);
        cr_assert_eq(fseek(file, 3 * MIB, SEEK_SET), 0);
        int byte = fgetc(file);
        cr_assert_eq(fseek(file, 3 * MIB, SEEK_SET), 0);
        cr_assert_neq(fputc(byte ^ 1, file), EOF);
        cr_assert_eq(fclose(file), 0);
    }
    globfree(&found);
}

ParameterizedTestParameters(memory_loads, have_the_weights_once)
{
    static enum loading all[LOADING_COUNT];
    for (int i = 0; i < LOADING_COUNT; i++)
        all[i] = (enum loading)i;
    return cr_make_param_array(enum loading, all, LOADING_COUNT);
}

ParameterizedTest(enum loading *loading, memory_loads, have_the_weights_once)
{
    char dir[256], cache[256];
    struct log_seen seen;
    struct error err;
    struct synth_params model = {.preset = "mixtral-8x7b",
                                 .dir = dir,
                                 .layer_count = 1,
                                 .scale = 4,
                                 .dtype = DTYPE_BF16,
                                 .seed = 1};
    uint64_t weights;
    snprintf(dir, sizeof dir, "%s/model", tools_folder());
    snprintf(cache, sizeof cache, "%s/cache", tools_folder());
    cr_assert_eq(setenv("PHASOR_CACHE", cache, 1), 0);
    cr_assert_eq(synth_write(&model, &err), STATUS_OK, "%s", err.message);
    cr_assert_eq(synth_size(&weights, &model, &err), STATUS_OK);
    if (*loading >= LOADING_MAPPED)
        leave_weights(dir);
    if (*loading == LOADING_REFUSED)
        damage_weights(cache);
    if (*loading == LOADING_ROUNDED)
        weights = weights / 5 * 2; /* most are of experts, which are 0.26 of that */

    uint64_t before = rss_peak(), live = memory_counters_get().live_bytes;
    cr_assert_eq(load(&seen, dir, *loading, &err), STATUS_OK, "%s", err.message);
    uint64_t peak = memory_counters_get().peak_bytes, rss = rss_peak() - before;
    printf("way %d: weights %.1f MiB, allocator %.1f MiB, VmHWM %.1f MiB more than before\n",
           *loading, (double)weights / MIB, (double)peak / MIB, (double)rss / MIB);
    cr_assert_eq(memory_counters_get().live_bytes, live);
    cr_expect_eq(seen.mapped, *loading == LOADING_MAPPED ? RANK_COUNT : 0);
    cr_expect_eq(seen.left, *loading >= LOADING_WRITTEN ? RANK_COUNT - seen.mapped : 0);
    cr_expect_eq(seen.refused, *loading == LOADING_REFUSED ? RANK_COUNT : 0);
    cr_expect_leq(peak, weights + BESIDE_BYTES);
    cr_expect_geq(peak, weights / 10 * 9, "all of them were there");
    cr_expect(!rss_is_ours() || rss <= weights + BESIDE_BYTES);
}
