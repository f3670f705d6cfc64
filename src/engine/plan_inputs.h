/* What phasor_plan reads before anything is priced. */
#ifndef PHASOR_ENGINE_PLAN_INPUTS_H
#define PHASOR_ENGINE_PLAN_INPUTS_H

#include "engine/plan.h"
#include "engine/plan_rows.h"
#include "engine/plan_source.h"
#include "model/config.h"
#include "quant/backup_format.h"

struct plan_inputs {
    struct model_config config;
    struct plan_source source;
    struct batch_lengths rows; /* of an input; else there are none */
    struct routing routing;
    bool has_backup;               /* as a run here would find it */
    struct backup_settings backup; /* of that */
    char *dir;
};

/* Each fills its part of `out`, which is zero before the first, and to be deinited also where one
 * of them fails. */

/* The config, the counts, and the rows, whose load becomes that of `params`. Fails as hub_resolve,
 * model_config_load, routing_counts_read and plan_rows_read do. */
enum status plan_inputs_read_model(struct plan_inputs *out, struct plan_params *params,
                                   struct error *err) MUST_CHECK;

/* The box, and whether there is a backup: apart from the model, so that a load can be refused
 * before a box is read. Fails as plan_source_read does; for a backup that was named as
 * engine_backup_check. */
enum status plan_inputs_read_box(struct plan_inputs *out, const struct plan_params *params,
                                 struct error *err) MUST_CHECK;

void plan_inputs_deinit(struct plan_inputs *inputs); /* a zero one is allowed */

#endif
