#define _GNU_SOURCE
#include "base/numa.h"

#include <limits.h>
#include <linux/mempolicy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The system takes one less than it is told. */
#define NODE_MAX (NUMA_NODES_MAX + 1ul)

static long system_get(int *mode, unsigned long *nodes, unsigned long node_max)
{
    return syscall(SYS_get_mempolicy, mode, nodes, node_max, NULL, 0ul);
}

static long system_set(int mode, const unsigned long *nodes, unsigned long node_max)
{
    return syscall(SYS_set_mempolicy, mode, nodes, node_max);
}

static long system_bind(void *memory, unsigned long bytes, int mode, const unsigned long *nodes,
                        unsigned long node_max)
{
    return syscall(SYS_mbind, memory, bytes, mode, nodes, node_max, 0u);
}

static const struct numa_calls system_calls = {"/sys", system_get, system_set, system_bind};
static const struct numa_calls *numa = &system_calls;

void numa_calls_use(const struct numa_calls *calls)
{
    numa = calls != NULL ? calls : &system_calls;
}

void numa_nodes_add(struct numa_nodes *nodes, int node)
{
    const int word_bits = 8 * (int)sizeof nodes->bits[0];
    if (node >= 0 && node < NUMA_NODES_MAX)
        nodes->bits[node / word_bits] |= 1ul << node % word_bits;
}

/* -1 stands there where the firmware does not tell. */
int numa_node_of_pci(const char *bus_id)
{
    char path[256];
    int node = -1;
    snprintf(path, sizeof path, "%s/bus/pci/devices/%s/numa_node", numa->sysfs, bus_id);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return -1;
    if (fscanf(file, "%d", &node) != 1 || node >= NUMA_NODES_MAX)
        node = -1;
    fclose(file);
    return node < 0 ? -1 : node;
}

/* "/sys/devices/pci0000:16/0000:16:02.0/0000:17:00.0/0000:18:00.0/0000:1a:00.0": the host's bridge,
 * a port of it, a switch, a port of that, the device. */
static bool place_get(char out[PATH_MAX], const char *bus_id)
{
    char link[256];
    snprintf(link, sizeof link, "%s/bus/pci/devices/%s", numa->sysfs, bus_id);
    return realpath(link, out) != NULL;
}

static int slashes_in(const char *path)
{
    int count = 0;
    for (; *path != 0; path++)
        count += *path == '/';
    return count;
}

static bool is_device(const char *folder)
{
    unsigned parts[4];
    return sscanf(folder, "%x:%x:%x.%x", &parts[0], &parts[1], &parts[2], &parts[3]) == 4;
}

enum pci_distance numa_pci_distance(const char *bus_id, const char *other)
{
    char a[PATH_MAX], b[PATH_MAX];
    size_t folder = 0, same = 0; /* where the last folder begins that both are in, and ends */
    if (!place_get(a, bus_id) || !place_get(b, other))
        return PCI_SYSTEM;
    for (size_t i = 0; a[i] != 0 && a[i] == b[i]; i++) {
        if (a[i] != '/')
            continue;
        folder = same;
        same = i + 1;
    }
    if (strncmp(a + folder, "pci", 3) == 0)
        return PCI_HOST;
    if (is_device(a + folder))
        return slashes_in(a + same) <= 1 && slashes_in(b + same) <= 1 ? PCI_SWITCH : PCI_SWITCHES;
    int node = numa_node_of_pci(bus_id);
    return node >= 0 && node == numa_node_of_pci(other) ? PCI_HOST : PCI_SYSTEM;
}

void numa_prefer(struct numa_policy *before, int node)
{
    struct numa_nodes wanted = {{0}};
    *before = (struct numa_policy){.is_changed = false};
    numa_nodes_add(&wanted, node);
    if (node < 0 || numa->get_policy(&before->mode, before->nodes.bits, NODE_MAX) != 0)
        return;
    before->is_changed = numa->set_policy(MPOL_PREFERRED, wanted.bits, NODE_MAX) == 0;
}

void numa_restore(const struct numa_policy *before)
{
    static const struct numa_nodes none;
    if (before->is_changed && numa->set_policy(before->mode, before->nodes.bits, NODE_MAX) != 0)
        (void)numa->set_policy(MPOL_DEFAULT, none.bits, NODE_MAX);
}

void numa_interleave(void *memory, size_t bytes, const struct numa_nodes *nodes)
{
    unsigned long any = 0;
    for (size_t i = 0; i < NUMA_WORDS; i++)
        any |= nodes->bits[i];
    if (any != 0)
        (void)numa->bind(memory, bytes, MPOL_INTERLEAVE, nodes->bits, NODE_MAX);
}
