#define _GNU_SOURCE
#include "numa_fake.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <ftw.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "rss.h"

static char root[] = "/tmp/phasor-numa-XXXXXX";
static int get_fails, set_fails, bind_fails;
static atomic_int set_count;
static int refused_mode = -1;
static struct numa_fake_bound bound;
static _Thread_local int mode_now;
static _Thread_local struct numa_nodes nodes_now;

static long fail(int error)
{
    errno = error;
    return error == 0 ? 0 : -1;
}

static long get(int *mode, unsigned long *nodes, unsigned long node_max)
{
    if (get_fails != 0)
        return fail(get_fails);
    cr_assert_eq(node_max, NUMA_NODES_MAX + 1);
    *mode = mode_now;
    memcpy(nodes, nodes_now.bits, sizeof nodes_now.bits);
    return 0;
}

static long set(int mode, const unsigned long *nodes, unsigned long node_max)
{
    if (set_fails != 0)
        return fail(set_fails);
    cr_assert_eq(node_max, NUMA_NODES_MAX + 1);
    if (mode == refused_mode)
        return fail(EINVAL);
    set_count++;
    mode_now = mode;
    memcpy(nodes_now.bits, nodes, sizeof nodes_now.bits);
    return 0;
}

static long bind(void *memory, unsigned long bytes, int mode, const unsigned long *nodes,
                 unsigned long node_max)
{
    cr_assert_eq(node_max, NUMA_NODES_MAX + 1);
    bound = (struct numa_fake_bound){.memory = memory,
                                     .bytes = bytes,
                                     .nodes = nodes[0],
                                     .mode = mode,
                                     .count = bound.count + 1,
                                     .was_touched = memory_given(memory, bytes) > 0};
    return fail(bind_fails);
}

static void folder(const char *under)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, under);
    cr_assert(mkdir(path, 0700) == 0 || errno == EEXIST, "%s", path);
}

void numa_fake_use(void)
{
    static const struct numa_calls calls = {root, get, set, bind};
    cr_assert_not_null(mkdtemp(root));
    folder("bus");
    folder("bus/pci");
    folder("bus/pci/devices");
    numa_calls_use(&calls);
}

static int gone(const char *path, const struct stat *about, int kind, struct FTW *at)
{
    (void)about, (void)kind, (void)at;
    return remove(path);
}

void numa_fake_remove(void)
{
    numa_calls_use(NULL);
    cr_assert_eq(nftw(root, gone, 8, FTW_DEPTH | FTW_PHYS), 0);
}

void numa_fake_device(const char *bus_id, const char *numa_node)
{
    char path[400];
    snprintf(path, sizeof path, "bus/pci/devices/%s", bus_id);
    folder(path);
    snprintf(path, sizeof path, "%s/bus/pci/devices/%s/numa_node", root, bus_id);
    FILE *file = fopen(path, "we");
    cr_assert_not_null(file);
    cr_assert(fputs(numa_node, file) >= 0 && fclose(file) == 0);
}

void numa_fake_device_in(const char *folders, const char *bus_id, const char *numa_node)
{
    char place[300], link[400], target[400];
    snprintf(place, sizeof place, "devices/%s/%s", folders, bus_id);
    for (char *end = strchr(place, '/'); end != NULL; end = strchr(end + 1, '/')) {
        *end = 0;
        folder(place);
        *end = '/';
    }
    folder(place);
    snprintf(target, sizeof target, "../../../%s", place);
    snprintf(link, sizeof link, "%s/bus/pci/devices/%s", root, bus_id);
    cr_assert_eq(symlink(target, link), 0);
    numa_fake_device(bus_id, numa_node);
}

void numa_fake_fail(int get_errno, int set_errno, int bind_errno)
{
    get_fails = get_errno;
    set_fails = set_errno;
    bind_fails = bind_errno;
}

void numa_fake_refuse(int mode)
{
    refused_mode = mode;
}

int numa_fake_mode(void)
{
    return mode_now;
}

unsigned long numa_fake_nodes(void)
{
    return nodes_now.bits[0];
}

void numa_fake_policy_set(int mode, unsigned long nodes)
{
    mode_now = mode;
    nodes_now = (struct numa_nodes){{nodes}};
}

int numa_fake_set_count(void)
{
    return set_count;
}

struct numa_fake_bound numa_fake_bound(void)
{
    return bound;
}
