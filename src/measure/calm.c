#include "measure/calm.h"

#include <math.h>
#include <time.h>

#include "base/system.h"
#include "measure/meter_state.h"

/* On a virtual machine the medians of few short samples stray by a tenth where nothing is amiss; a
 * core that two share has lost a quarter and more. */
#define TOLERANCE 0.2

/* Of the n-th probe's step towards the median, n times, in logarithms (Robbins and Monro, 1951):
 * what is usual follows half of a factor of two by the time that there were twice as many probes.
 * What it began with counts for some. */
#define STEP       0.5
#define HEAD_START 10

/* While a probe is not as usual. */
#define NAP_NANOSECONDS 50000000

void calm_init(struct calm *out, const struct calm_params *params)
{
    *out = (struct calm){.params = *params};
}

static double strangeness(const struct calm *calm, enum calm_probe which, double seconds)
{
    return seconds > 0 ? fabs(log(seconds / calm->usual[which])) : 0;
}

static bool is_usual(const struct calm *calm, enum calm_probe which, double seconds)
{
    return strangeness(calm, which, seconds) <= log(1 + calm->params.tolerance);
}

bool calm_is_usual(const struct calm *calm, enum calm_probe which, const struct calm_point *point)
{
    return is_usual(calm, which, point->probe_seconds);
}

const struct calm_point *calm_better(const struct calm *calm, enum calm_probe which,
                                     const struct calm_point *a, const struct calm_point *b)
{
    bool has_calm = is_usual(calm, which, a->probe_seconds);
    if (has_calm != is_usual(calm, which, b->probe_seconds))
        return has_calm ? a : b;
    if (has_calm)
        return b->measured.seconds < a->measured.seconds ? b : a;
    double first = strangeness(calm, which, a->probe_seconds);
    return strangeness(calm, which, b->probe_seconds) < first ? b : a;
}

static void usual_follow(struct calm *calm, enum calm_probe which, double seconds)
{
    double step = exp(STEP / (double)(HEAD_START + ++calm->seen[which]));
    double *usual = &calm->usual[which];
    if (seconds != *usual)
        *usual = seconds > *usual ? fmin(*usual * step, seconds) : fmax(*usual / step, seconds);
}

static enum status probe(double *out, struct calm *calm, enum calm_probe which, struct error *err)
{
    TRY(calm->params.probe(out, calm->params.context, which, err));
    if (calm->usual[which] == 0)
        calm->usual[which] = *out;
    return STATUS_OK;
}

static bool has_patience(const struct calm *calm)
{
    return calm->waited_seconds < calm->params.patience_seconds + calm->measured_seconds / 2;
}

static enum status wait_for_calm(bool *out, struct calm *calm, enum calm_probe which,
                                 struct error *err)
{
    *out = false;
    while (!*out && has_patience(calm)) {
        double seconds, begin = system_seconds();
        if (calm->params.goes_on != NULL)
            TRY(calm->params.goes_on(calm->params.goes_on_context, err));
        nanosleep(&(struct timespec){.tv_nsec = NAP_NANOSECONDS}, NULL);
        TRY(probe(&seconds, calm, which, err));
        *out = is_usual(calm, which, seconds);
        calm->waited_seconds += system_seconds() - begin;
    }
    return STATUS_OK;
}

/* Again and again, until a point has had calm behind it. */
static enum status insist(struct calm_point *out, struct calm *calm, enum calm_probe which,
                          enum status (*measure)(struct measured *out, void *context,
                                                 struct error *err),
                          void *context, struct error *err)
{
    bool is_calm;
    while (!is_usual(calm, which, out->probe_seconds)) {
        struct calm_point again;
        TRY(wait_for_calm(&is_calm, calm, which, err));
        if (!is_calm)
            break;
        double begin = system_seconds();
        TRY(measure(&again.measured, context, err));
        TRY(probe(&again.probe_seconds, calm, which, err));
        calm->waited_seconds += system_seconds() - begin;
        *out = *calm_better(calm, which, out, &again);
    }
    calm->disturbed += !is_usual(calm, which, out->probe_seconds);
    return STATUS_OK;
}

enum status calm_measure(struct calm_point *out, struct calm *calm, enum calm_probe which,
                         enum status (*measure)(struct measured *out, void *context,
                                                struct error *err),
                         void *context, struct error *err)
{
    double begin = system_seconds();
    out->probe_seconds = 0;
    TRY(measure(&out->measured, context, err));
    calm->measured_seconds += system_seconds() - begin;
    if (calm->params.patience_seconds == 0)
        return STATUS_OK;
    TRY(probe(&out->probe_seconds, calm, which, err));
    usual_follow(calm, which, out->probe_seconds);
    return insist(out, calm, which, measure, context, err);
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

/* As the meter has it of any point, behind a probe that finds caches and clocks as no other does.
 */
static enum status usual_find(double *out, struct calm_meter *calm, enum calm_probe which,
                              struct error *err)
{
    struct work_shape work = probe_work(calm->meter, which);
    struct measured found;
    TRY(meter_probe(out, calm, which, err));
    TRY(meter_work(&found, calm->meter, &work, err));
    *out = found.seconds;
    return STATUS_OK;
}

enum status calm_meter_init(struct calm_meter *out, struct meter *meter,
                            const struct calm_params *params, struct error *err)
{
    struct work_shape compute = probe_work(meter, CALM_COMPUTE);
    struct work_shape memory = probe_work(meter, CALM_MEMORY);
    bool probes = params->patience_seconds > 0;
    *out = (struct calm_meter){.meter = meter};
    calm_init(&out->calm, params);
    out->calm.params.probe = meter_probe;
    out->calm.params.context = out;
    out->calm.params.tolerance = TOLERANCE;
    for (int which = 0; which < CALM_PROBES && probes; which++)
        TRY(usual_find(&out->calm.usual[which], out, (enum calm_probe)which, err));
    if (probes)
        out->flops_per_byte = work_shape_flops(&compute) / out->calm.usual[CALM_COMPUTE] /
                              (work_shape_bytes(&memory) / out->calm.usual[CALM_MEMORY]);
    return STATUS_OK;
}

struct point {
    struct meter *meter;
    const struct work_shape *work;
    enum group_op op;
    int size;
    bool is_strided;
    int64_t bytes;
};

static enum status work_measure(struct measured *out, void *context, struct error *err)
{
    const struct point *point = context;
    return meter_work(out, point->meter, point->work, err);
}

static enum status collective_measure(struct measured *out, void *context, struct error *err)
{
    const struct point *point = context;
    return meter_collective(out, point->meter, point->op, point->size, point->is_strided,
                            point->bytes, err);
}

enum calm_probe calm_probe_of_work(const struct calm_meter *calm, const struct work_shape *work)
{
    bool is_compute = work_shape_flops(work) > work_shape_bytes(work) * calm->flops_per_byte;
    return is_compute ? CALM_COMPUTE : CALM_MEMORY;
}

enum status calm_work(struct calm_point *out, struct calm_meter *calm,
                      const struct work_shape *work, struct error *err)
{
    struct point point = {.meter = calm->meter, .work = work};
    return calm_measure(out, &calm->calm, calm_probe_of_work(calm, work), work_measure, &point,
                        err);
}

enum status calm_collective(struct calm_point *out, struct calm_meter *calm, enum group_op op,
                            int size, bool is_strided, int64_t bytes, struct error *err)
{
    struct point point = {
        .meter = calm->meter, .op = op, .size = size, .is_strided = is_strided, .bytes = bytes};
    return calm_measure(out, &calm->calm, CALM_PROBE_OF_COLLECTIVE, collective_measure, &point,
                        err);
}
