/* A machine with nodes of memory that is none: what base/numa.h asks of the system, played. */
#ifndef PHASOR_TESTS_NUMA_FAKE_H
#define PHASOR_TESTS_NUMA_FAKE_H

#include "base/numa.h"

/* From here on all ask it, until it is removed. */
void numa_fake_use(void);
void numa_fake_remove(void);

/* A device of PCI, and what its file says of its node. */
void numa_fake_device(const char *bus_id, const char *numa_node);

/* The same, in these folders below one another: "pci0000:16/0000:16:02.0". */
void numa_fake_device_in(const char *folders, const char *bus_id, const char *numa_node);

/* With what each call fails, an errno; 0: they do not. */
void numa_fake_fail(int get_errno, int set_errno, int bind_errno);

/* No thread gets this mode any more; -1: none is refused. */
void numa_fake_refuse(int mode);

/* The thread's policy now (0 at the start), and its nodes, the lowest 64. */
int numa_fake_mode(void);
unsigned long numa_fake_nodes(void);
void numa_fake_policy_set(int mode, unsigned long nodes);

/* Calls so far that have set a policy; of any thread. */
int numa_fake_set_count(void);

/* What was bound last: bytes (0: nothing), its mode and nodes, and whether a page of it was there
 * already. */
struct numa_fake_bound {
    const void *memory;
    unsigned long bytes, nodes;
    int mode, count;
    bool was_touched;
};
struct numa_fake_bound numa_fake_bound(void);

#endif
