#include "measure/calm.h"

#include <math.h>
#include <time.h>

#include "base/system.h"
#include "measure/meter_state.h"

/* On a virtual machine the medians of few short samples stray by a tenth where nothing is amiss; a
 * core that two share has lost a quarter and more. */
#define TOLERANCE 0.2

/* Of the steps in which probes are counted. */
#define STEP         0.01
#define STEP_SECONDS 1e-9 /* the first */

/* A message that goes through memory, or a cache that all share. */
#define MESSAGE_LARGE ((int64_t)1 << 19)

/* While a probe is not as usual. */
#define NAP_NANOSECONDS 50000000

void calm_init(struct calm *out, const struct calm_params *params)
{
    *out = (struct calm){.params = *params};
}

double calm_usual(const struct calm *calm, enum calm_probe which)
{
    uint32_t below = 0;
    int step = 0;
    if (calm->params.usual[which] > 0)
        return calm->params.usual[which];
    if (calm->seen[which] == 0)
        return 0;
    while (2 * (below + calm->counts[which][step]) < calm->seen[which])
        below += calm->counts[which][step++];
    return STEP_SECONDS * exp(STEP * (step + 0.5));
}

void calm_remember(struct calm *calm, const struct calm_point *point)
{
    if (!(point->probe_seconds > 0))
        return;
    double step = floor(log(point->probe_seconds / STEP_SECONDS) / STEP);
    calm->counts[point->probe][(int)fmin(fmax(step, 0), CALM_STEPS - 1)]++;
    calm->seen[point->probe]++;
}

/* In logarithms. */
static double strangeness(const struct calm *calm, const struct calm_point *point)
{
    double usual = calm_usual(calm, point->probe);
    bool is_known = point->probe_seconds > 0 && usual > 0;
    return is_known ? fabs(log(point->probe_seconds / usual)) : 0;
}

bool calm_is_usual(const struct calm *calm, const struct calm_point *point)
{
    return strangeness(calm, point) <= log(1 + calm->params.tolerance);
}

const struct calm_point *calm_better(const struct calm *calm, const struct calm_point *a,
                                     const struct calm_point *b)
{
    bool has_calm = calm_is_usual(calm, a);
    if (has_calm != calm_is_usual(calm, b))
        return has_calm ? a : b;
    if (has_calm)
        return b->measured.seconds < a->measured.seconds ? b : a;
    return strangeness(calm, b) < strangeness(calm, a) ? b : a;
}

static enum status probe(struct calm_point *out, struct calm *calm, struct error *err)
{
    return calm->params.probe(&out->probe_seconds, calm->params.context, out->probe, err);
}

static bool has_patience(const struct calm *calm)
{
    return calm->waited_seconds < calm->params.patience_seconds + calm->measured_seconds / 2;
}

static enum status wait_for_calm(bool *out, struct calm *calm, enum calm_probe which,
                                 struct error *err)
{
    struct calm_point now = {.probe = which};
    *out = false;
    while (!*out && has_patience(calm)) {
        double begin = system_seconds();
        if (calm->params.goes_on != NULL)
            TRY(calm->params.goes_on(calm->params.goes_on_context, err));
        nanosleep(&(struct timespec){.tv_nsec = NAP_NANOSECONDS}, NULL);
        TRY(probe(&now, calm, err));
        *out = calm_is_usual(calm, &now);
        calm->waited_seconds += system_seconds() - begin;
    }
    return STATUS_OK;
}

/* Again and again, until a point has had calm behind it. */
static enum status insist(struct calm_point *out, struct calm *calm,
                          enum status (*measure)(struct measured *out, void *context,
                                                 struct error *err),
                          void *context, struct error *err)
{
    bool is_calm;
    while (!calm_is_usual(calm, out)) {
        struct calm_point again = {.probe = out->probe};
        TRY(wait_for_calm(&is_calm, calm, out->probe, err));
        if (!is_calm)
            break;
        double begin = system_seconds();
        TRY(measure(&again.measured, context, err));
        TRY(probe(&again, calm, err));
        calm->waited_seconds += system_seconds() - begin;
        *out = *calm_better(calm, out, &again);
    }
    calm->disturbed += !calm_is_usual(calm, out);
    return STATUS_OK;
}

enum status calm_measure(struct calm_point *out, struct calm *calm, enum calm_probe which,
                         enum status (*measure)(struct measured *out, void *context,
                                                struct error *err),
                         void *context, struct error *err)
{
    double begin = system_seconds();
    *out = (struct calm_point){.probe = which};
    TRY(measure(&out->measured, context, err));
    calm->measured_seconds += system_seconds() - begin;
    if (calm->params.patience_seconds == 0)
        return STATUS_OK;
    TRY(probe(out, calm, err));
    calm_remember(calm, out);
    bool is_known = calm->params.usual[which] > 0 || calm->seen[which] >= CALM_SEEN_MIN;
    return is_known ? insist(out, calm, measure, context, err) : STATUS_OK;
}

/* ---- By a meter ------------------------------------------------------------------------------ */

static struct work_shape probe_work(const struct meter *meter, enum calm_probe which)
{
    enum { INPUTS = 4096, OUTPUTS_MAX = 2048 };
    int64_t outputs = meter->ranks[0].weight_bytes / 2 / (2 * INPUTS) / PACK_BLOCK * PACK_BLOCK;
    if (which == CALM_COMPUTE)
        return (struct work_shape){WORK_MATMUL, DTYPE_BF16, {32, 1024, 1024}};
    outputs = outputs < OUTPUTS_MAX ? outputs : OUTPUTS_MAX;
    return (struct work_shape){WORK_MATMUL, DTYPE_BF16, {1, outputs, INPUTS}};
}

/* As few samples as there may be: it is asked often. */
static enum status meter_probe(double *out, void *context, enum calm_probe which, struct error *err)
{
    struct meter *meter = ((struct calm_meter *)context)->meter;
    struct work_shape work = probe_work(meter, which);
    struct measured found;
    double settled = meter->params.settled;
    meter->params.settled = INFINITY;
    enum status status = meter_work(&found, meter, &work, err);
    meter->params.settled = settled;
    *out = status == STATUS_OK ? found.seconds : 0;
    return status;
}

/* Behind a first one, which finds caches and clocks as no other does. */
static enum status probe_twice(double *out, struct calm_meter *calm, enum calm_probe which,
                               struct error *err)
{
    TRY(meter_probe(out, calm, which, err));
    return meter_probe(out, calm, which, err);
}

enum status calm_meter_init(struct calm_meter *out, struct meter *meter,
                            const struct calm_params *params, struct error *err)
{
    struct work_shape compute = probe_work(meter, CALM_COMPUTE);
    struct work_shape memory = probe_work(meter, CALM_MEMORY);
    double seconds[CALM_PROBES];
    *out = (struct calm_meter){.meter = meter};
    calm_init(&out->calm, params);
    out->calm.params.probe = meter_probe;
    out->calm.params.context = out;
    out->calm.params.tolerance = TOLERANCE;
    if (params->patience_seconds == 0)
        return STATUS_OK;
    for (int which = 0; which < CALM_PROBES; which++)
        TRY(probe_twice(&seconds[which], out, (enum calm_probe)which, err));
    out->flops_per_byte = work_shape_flops(&compute) / seconds[CALM_COMPUTE] /
                          (work_shape_bytes(&memory) / seconds[CALM_MEMORY]);
    return STATUS_OK;
}

struct point {
    struct meter *meter;
    const struct work_shape *work;
    const struct collective_shape *collective;
};

static enum status work_measure(struct measured *out, void *context, struct error *err)
{
    const struct point *point = context;
    return meter_work(out, point->meter, point->work, err);
}

static enum status collective_measure(struct measured *out, void *context, struct error *err)
{
    const struct point *point = context;
    return meter_collective(out, point->meter, point->collective, err);
}

enum status calm_work(struct calm_point *out, struct calm_meter *calm,
                      const struct work_shape *work, struct error *err)
{
    struct point point = {.meter = calm->meter, .work = work};
    bool is_compute = work_shape_flops(work) > work_shape_bytes(work) * calm->flops_per_byte;
    return calm_measure(out, &calm->calm, is_compute ? CALM_COMPUTE : CALM_MEMORY, work_measure,
                        &point, err);
}

enum status calm_collective(struct calm_point *out, struct calm_meter *calm,
                            const struct collective_shape *shape, struct error *err)
{
    struct point point = {.meter = calm->meter, .collective = shape};
    bool is_large = shape->bytes >= MESSAGE_LARGE;
    return calm_measure(out, &calm->calm, is_large ? CALM_MEMORY : CALM_COMPUTE, collective_measure,
                        &point, err);
}
