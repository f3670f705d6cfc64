#define _GNU_SOURCE
#include "device/cpu_places.h"

#include <pthread.h>

/* The machine's CPUs, as the system numbers them, in the order of their places. */
static int places[CPU_SETSIZE];
static int place_count;

#if defined(PHASOR_HWLOC)
#include <hwloc.h>

/* hwloc numbers its PUs (hardware threads) in just this order. */
static void places_read(hwloc_topology_t topology)
{
    int count = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
    for (int i = 0; i < count && place_count < CPU_SETSIZE; i++) {
        hwloc_obj_t unit = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PU, (unsigned)i);
        if (unit->os_index < CPU_SETSIZE)
            places[place_count++] = (int)unit->os_index;
    }
}

/* Also CPUs that this process may not use now. */
#if HWLOC_API_VERSION >= 0x00020500
#define TOPOLOGY_FLAGS                                                                             \
    (HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED | HWLOC_TOPOLOGY_FLAG_DONT_CHANGE_BINDING)
#elif HWLOC_API_VERSION >= 0x00020100
#define TOPOLOGY_FLAGS HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED
#else
#define TOPOLOGY_FLAGS HWLOC_TOPOLOGY_FLAG_WHOLE_SYSTEM
#endif

static void places_find(void)
{
    hwloc_topology_t topology;
    if (hwloc_topology_init(&topology) != 0)
        return;
    if (hwloc_topology_set_flags(topology, TOPOLOGY_FLAGS) == 0 &&
        hwloc_topology_load(topology) == 0)
        places_read(topology);
    hwloc_topology_destroy(topology);
}
#else
static void places_find(void)
{
}
#endif

int cpu_of_set(const cpu_set_t *set, int index)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    cpu_set_t left = *set;
    pthread_once(&once, places_find);
    for (int i = 0; i < place_count + CPU_SETSIZE; i++) {
        int cpu = i < place_count ? places[i] : i - place_count;
        if (!CPU_ISSET(cpu, &left))
            continue;
        CPU_CLR(cpu, &left);
        if (index-- == 0)
            return cpu;
    }
    return -1;
}
