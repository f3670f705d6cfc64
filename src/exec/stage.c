#include "exec/stage.h"

const char *const stage_names[STAGE_KIND_COUNT] = {
    [STAGE_BETWEEN] = "between",
    [STAGE_PROJECTION] = "projection",
    [STAGE_ATTENTION] = "attention",
    [STAGE_EXPERTS] = "experts",
    [STAGE_SHARED] = "shared",
    [STAGE_HEAD] = "head",
    [STAGE_EMBEDDING] = "embedding",
    [STAGE_NORM] = "norm",
    [STAGE_ROPE] = "rope",
    [STAGE_ROUTER] = "router",
    [STAGE_COMBINE] = "combine",
    [STAGE_COLLECTIVE] = "collective",
    [STAGE_TRANSITION] = "transition",
};
