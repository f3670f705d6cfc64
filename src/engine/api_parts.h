/* What the public calls share: include/phasor.h over the engine. */
#ifndef PHASOR_ENGINE_API_PARTS_H
#define PHASOR_ENGINE_API_PARTS_H

#include "base/log.h"
#include "base/status.h"
#include "engine/auto_plan.h"
#include "engine/engine.h"
#include "engine/pass_contexts.h"
#include "phasor.h"

/* The status, with its sentence in `out`, which may be NULL. */
enum phasor_status api_tell(struct phasor_error *out, enum status status, const struct error *err);

/* Fills `whole` (which holds the defaults) with the caller's struct of params->size bytes: an older
 * program's is shorter, a newer one's longer. */
enum status api_complete(void *whole, size_t whole_bytes, const void *params,
                         struct error *err) MUST_CHECK;

/* The caller's function, behind one of the library's own type. */
struct log_bridge {
    phasor_log_fn *log;
    void *context;
};
void api_log(void *bridge, enum log_level level, const char *message);

/* What callers have a handle of. */
struct phasor_model {
    struct engine *engine;
    struct pass_contexts contexts; /* of passes that are recorded by themselves */
    struct auto_plan plan;         /* found */
    char plan_text[LAYOUT_TEXT_BYTES];
    struct log_bridge bridge;
    struct log_sink log;
};

/* What every call with a checkpoint asks for. */
enum status api_check_model(const char *model, enum phasor_dtype dtype,
                            struct error *err) MUST_CHECK;

/* The number type of routed experts. */
enum status api_check_experts(enum phasor_dtype dtype, struct error *err) MUST_CHECK;

#endif
