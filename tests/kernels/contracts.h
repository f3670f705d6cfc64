/* The contracts of an operation, over the shared table of cases:
 *   - against the reference (reference.h), with padding zero and everything else untouched;
 *   - bit for bit the same in every way to run it;
 *   - bit for bit the same for each row alone as for all rows together. */
#ifndef PHASOR_TESTS_KERNELS_CONTRACTS_H
#define PHASOR_TESTS_KERNELS_CONTRACTS_H

#include "cases.h"
#include "device/device.h"

#define CONTRACT_WAYS_MAX 8

/* Where an operation runs, and how. */
struct contract_ways {
    const char *name;
    bool takes_pairs; /* as struct workload */
    bool takes_halves;
    bool widens_int4;
    int head_dim_pairs;
    int count;
    int alone_count;             /* the first of them run each row alone, too ... */
    int alone_first, alone_step; /* ... in this case, and from it in each so many-th */
    struct device *devices[CONTRACT_WAYS_MAX];
    void (*prepare)(int way); /* called before a launch; NULL: nothing is to be done */
};

/* All cases of the operation that are for tests. */
void contracts_check(const struct contract_ways *ways, enum kernel_op op);

#endif
