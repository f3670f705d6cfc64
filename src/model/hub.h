/* From what the user typed to a directory with a checkpoint. */
#ifndef PHASOR_MODEL_HUB_H
#define PHASOR_MODEL_HUB_H

#include "base/status.h"

/* `model` is an existing directory, or an id "org/name" that is looked up in the local Hugging Face
 * cache (HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME, XDG_CACHE_HOME, ~/.cache, in that order;
 * refs/REVISION or a commit under snapshots/). `revision` may be NULL ("main"). Nothing is
 * downloaded; when it is not there the sentence says where was looked and how to get it.
 * `*out` is freed with memory_free. */
enum status hub_resolve(char **out, const char *model, const char *revision,
                        struct error *err) MUST_CHECK;

#endif
