/* Changes of layout on emulated GPUs, one call or kernel of which fails. */
#ifndef PHASOR_TESTS_CUDA_TRANSITION_CHANGE_FAULTS_H
#define PHASOR_TESTS_CUDA_TRANSITION_CHANGE_FAULTS_H

#include "rig.h"

struct change_fault {
    const char *name; /* of the case */
    const struct rig_params *params;
    bool is_beside;       /* passes; see rig_move */
    bool is_kernel;       /* which breaks its GPU; else a call of the runtime */
    bool may_end_devices; /* so that no stream of theirs reads any more, as where NCCL was aborted:
                           * then layers are not looked at */
    uint64_t n;
    int *looked; /* counts faults behind which layers were looked at; NULL */
};

/* Goes to decode, and returns whether the fault came. Then the run has ended on all ranks with a
 * sentence that names rank and GPU, each layer is the old one or the new, whole and on all ranks
 * (`cold`; not of a GPU that broke), and nothing is left; fails the test. */
bool change_fails(const struct change_fault *fault, const struct cold *cold);

#endif
