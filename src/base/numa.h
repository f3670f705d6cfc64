/* On which node of the host memory lies, where there are several (NUMA). Nothing here fails: where
 * a node is unknown, or the system has no nodes or does not let the process choose (ENOSYS, EPERM),
 * memory lies as it would without. */
#ifndef PHASOR_BASE_NUMA_H
#define PHASOR_BASE_NUMA_H

#include <stdbool.h>
#include <stddef.h>

#define NUMA_NODES_MAX 1024 /* of any Linux */
#define NUMA_WORDS     (NUMA_NODES_MAX / (8 * sizeof(unsigned long)))

struct numa_nodes {
    unsigned long bits[NUMA_WORDS];
};

void numa_nodes_add(struct numa_nodes *nodes, int node); /* -1 is passed over */

/* The node beside a device of PCI ("0000:1a:00.0", in small letters); -1: unknown. */
int numa_node_of_pci(const char *bus_id);

/* What lies between two devices of PCI, by their places in /sys; in words of nvidia-smi. */
enum pci_distance {
    PCI_SWITCH,   /* PIX: one switch */
    PCI_SWITCHES, /* PXB: several */
    PCI_HOST,     /* PHB, NODE: the host, within a node */
    PCI_SYSTEM    /* SYS: more than a node; or it is unknown */
};
enum pci_distance numa_pci_distance(const char *bus_id, const char *other);

/* What the thread's memory is for until it is restored: on `node`, while that has any. With -1
 * nothing changes. A policy that the system does not take any more (its nodes are not the process's
 * by then) is the default's instead: the thread's memory does not stay on `node`. */
struct numa_policy {
    bool is_changed;
    int mode;
    struct numa_nodes nodes;
};
void numa_prefer(struct numa_policy *before, int node);
void numa_restore(const struct numa_policy *before);

/* Lets whole pages that nobody has touched yet lie on these nodes by turns; of none: as they would.
 */
void numa_interleave(void *memory, size_t bytes, const struct numa_nodes *nodes);

/* What it asks of the system; 0 or -1, as the calls of Linux without libnuma. */
struct numa_calls {
    const char *sysfs; /* "/sys" */
    long (*get_policy)(int *mode, unsigned long *nodes, unsigned long node_max);
    long (*set_policy)(int mode, const unsigned long *nodes, unsigned long node_max);
    long (*bind)(void *memory, unsigned long bytes, int mode, const unsigned long *nodes,
                 unsigned long node_max);
};

/* Others, for tests, while nobody asks; NULL: the system's. Borrowed. */
void numa_calls_use(const struct numa_calls *calls);

#endif
