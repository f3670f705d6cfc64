#include "bench_models.h"

#include <string.h>
#include <unistd.h>

static void open_close(struct bench_models *models, int index)
{
    phasor_model_close(models->open[index].of);
    models->open[index] = models->open[--models->open_count];
}

static uint64_t open_bytes(const struct bench_models *models)
{
    uint64_t bytes = 0;
    for (int i = 0; i < models->open_count; i++)
        bytes += models->open[i].bytes;
    return bytes;
}

/* Room for one more: those go whose last use is longest ago. */
static void room_make(struct bench_models *models, uint64_t bytes)
{
    while (models->open_count > 0 && (models->open_count == BENCH_OPEN_MAX ||
                                      open_bytes(models) + bytes > models->bytes_max)) {
        int oldest = 0;
        for (int i = 1; i < models->open_count; i++) {
            if (models->open[i].used_at < models->open[oldest].used_at)
                oldest = i;
        }
        open_close(models, oldest);
    }
}

static enum phasor_transition way_of(const char *name)
{
    static const struct {
        const char *name;
        enum phasor_transition way;
    } ways[] = {{"keep", PHASOR_TRANSITION_KEEP},
                {"reshard", PHASOR_TRANSITION_RESHARD},
                {"reload", PHASOR_TRANSITION_RELOAD},
                {"upload", PHASOR_TRANSITION_UPLOAD}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (strcmp(ways[i].name, name) == 0)
            return ways[i].way;
    }
    return PHASOR_TRANSITION_AUTO; /* one layout: there is nothing to choose */
}

/* As much as there is, where that is more. */
static uint64_t times(uint64_t bytes, int count)
{
    return bytes > UINT64_MAX / (uint64_t)count ? UINT64_MAX : bytes * (uint64_t)count;
}

static enum phasor_status model_open(struct phasor_model **out, const struct bench_models *models,
                                     const struct bench_cell *cell, const struct bench_plan *plan,
                                     struct phasor_error *err)
{
    const struct bench_question *question = models->question;
    struct phasor_model_params params = phasor_model_params_default();
    params.model = question->models[cell->model];
    params.devices = question->devices;
    params.thread_count = (int)question->threads;
    if (question->clock == BENCH_WALL) /* else it is the box's */
        params.memory_bytes = times(question->memory, cell->device_count);
    params.plan = plan->plan;
    params.transition = way_of(plan->way);
    params.max_num_seqs = plan->wave;
    params.max_num_batched_tokens = plan->pass_tokens;
    params.planned_kv_bytes = times(plan->kv_cache, cell->device_count);
    params.records = models->records;
    params.log = models->log;
    params.log_context = models->context;
    return phasor_model_open(out, &params, err);
}

/* How much of what a change of layout needs is read ahead follows from what else is to have room
 * when the model is opened. */
static bool reads_ahead(const struct bench_plan *plan)
{
    return strcmp(plan->way, "reload") == 0 || strcmp(plan->way, "upload") == 0;
}

/* Whether what was opened for the one is what would be opened for the other: another load of the
 * same plan has another wave, say. Where nothing is read ahead the room for a larger cache does. */
static bool has_room_for(const struct bench_plan *was, const struct bench_plan *plan)
{
    if (!reads_ahead(plan))
        return was->kv_cache >= plan->kv_cache;
    return was->kv_cache == plan->kv_cache && was->wave == plan->wave &&
           was->pass_tokens == plan->pass_tokens;
}

static bool is_of_plan(const struct bench_open *open, int model, const struct bench_plan *plan)
{
    return open->model == model && strcmp(open->plan.plan, plan->plan) == 0 &&
           strcmp(open->plan.way, plan->way) == 0;
}

static struct bench_open *open_find(struct bench_models *models, int model,
                                    const struct bench_plan *plan)
{
    for (int i = 0; i < models->open_count; i++) {
        struct bench_open *open = &models->open[i];
        if (is_of_plan(open, model, plan) && has_room_for(&open->plan, plan))
            return open;
    }
    return NULL;
}

/* What has too little room for the plan, and is of no use beside one that has enough. */
static void outgrown_close(struct bench_models *models, int model, const struct bench_plan *plan)
{
    for (int i = models->open_count - 1; i >= 0; i--) {
        if (is_of_plan(&models->open[i], model, plan) && !reads_ahead(plan))
            open_close(models, i);
    }
}

/* Of GPUs one model at a time: what a host has free says nothing of theirs. So with a limit of
 * memory, which is for all that the process holds. */
static uint64_t bytes_for_models(const struct bench_question *question)
{
    long pages = sysconf(_SC_AVPHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    bool is_cpu = strncmp(question->devices, "cpu", 3) == 0 && question->memory == 0;
    return is_cpu && pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page / 2 : 1;
}

enum phasor_status bench_models_get(struct phasor_model **out, bool *is_new,
                                    struct bench_models *models, const struct bench_cell *cell,
                                    const struct bench_plan *plan, uint64_t bytes,
                                    struct phasor_error *err)
{
    struct bench_open *found = open_find(models, cell->model, plan);
    *is_new = found == NULL;
    if (found == NULL) {
        struct bench_open open = {.model = cell->model, .plan = *plan, .bytes = bytes};
        if (models->bytes_max == 0)
            models->bytes_max = bytes_for_models(models->question);
        outgrown_close(models, cell->model, plan);
        room_make(models, bytes);
        enum phasor_status status = model_open(&open.of, models, cell, plan, err);
        if (status != PHASOR_OK)
            return status;
        found = &models->open[models->open_count++];
        *found = open;
    }
    found->used_at = ++models->call_count;
    *out = found->of;
    return PHASOR_OK;
}

void bench_models_close(struct bench_models *models)
{
    while (models->open_count > 0)
        open_close(models, 0);
}
