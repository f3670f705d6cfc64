/* What the engine's own sources share: engine.c opens a model, and tells what it has and what a
 * pass is to find; engine_load.c has its weights loaded as its plan says, and what changes them. */
#ifndef PHASOR_ENGINE_ENGINE_STATE_H
#define PHASOR_ENGINE_ENGINE_STATE_H

#include "base/trace.h"
#include "comm/box.h"
#include "engine/engine.h"
#include "exec/exec.h"

struct engine {
    char *name;
    char *dir;
    struct engine_params params; /* without the texts that opening alone needs */
    char *backup_path;           /* of them; NULL: none is named */
    struct checkpoint *checkpoint;
    struct tokenizer *tokenizer;
    struct plan_layouts layouts;
    uint64_t memory_bytes;
    int64_t pass_tokens;           /* chosen with the plan; 0: were not */
    uint64_t cache_bytes;          /* that the plan was priced with; 0: not known */
    bool has_chosen;               /* the layouts: nobody named them */
    struct engine_devices devices; /* that were named */
    struct trace *trace;
    struct trace_lane *lane; /* of who drives */
    struct turn *turn;       /* of ranks that are recorded; NULL: they run as they can */
    struct box *box;
    struct weights *weights; /* [rank_count] */
    bool keeps_both;         /* layouts are resident */
    struct model_shape shape;
    struct backup *backup;         /* NULL: none is used */
    struct transition *transition; /* NULL: the plan has one layout, or no layer has experts */
    enum phase goal;               /* of what was started last beside passes */
    bool has_let_go;               /* the last pass let go of layers */
    bool has_awaited;              /* the last pass waited for layers that changed beside it */
};

/* Opens box and backup, loads the weights, and prepares changes of layout, by the layouts that the
 * engine has; `chosen` are params as its plan needs them. */
enum status engine_plan_load(struct engine *engine, struct engine_params *chosen,
                             const struct weight_types *types, struct error *err) MUST_CHECK;

/* The opposite, also of what failed; what else the engine has stays. */
void engine_plan_drop(struct engine *engine);

/* Over its weights, without the sizes of passes. */
struct exec_params engine_exec_params(const struct engine *engine);

#endif
