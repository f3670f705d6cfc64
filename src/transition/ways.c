/* The ways, in one table. */
#include "transition/transition_state.h"

const char *const way_names[WAY_COUNT] = {
    [WAY_KEEP] = "keep",     [WAY_RESHARD] = "reshard", [WAY_RELOAD] = "reload",
    [WAY_UPLOAD] = "upload", [WAY_MIXED] = "mixed",
};

const struct way_ops *const ways[WAY_COUNT] = {
    [WAY_KEEP] = &way_keep,     [WAY_RESHARD] = &way_reshard, [WAY_RELOAD] = &way_reload,
    [WAY_UPLOAD] = &way_upload, [WAY_MIXED] = &way_mixed,
};
