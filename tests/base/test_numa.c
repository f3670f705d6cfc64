/* Nodes of memory: found by the devices beside them, preferred for a while, taken by turns; and
 * nothing of that where the machine has or allows none. */
#include <criterion/criterion.h>
#include <errno.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/numa.h"
#include "numa_fake.h"

TestSuite(numa, .init = numa_fake_use, .fini = numa_fake_remove, .timeout = 60);

Test(numa, a_device_has_a_node)
{
    static const struct {
        const char *id, *says;
        int node;
    } devices[] = {
        {"0000:1a:00.0", "0\n", 0},     {"0000:1b:00.0", "3\n", 3},
        {"0000:1c:00.0", "-1\n", -1},   {"0000:1d:00.0", "", -1},
        {"0000:1e:00.0", "none\n", -1}, {"0000:1f:00.0", "-7\n", -1},
        {"0000:20:00.0", "1023", 1023}, {"0000:21:00.0", "1024", -1},
    };
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++) {
        numa_fake_device(devices[i].id, devices[i].says);
        cr_expect_eq(numa_node_of_pci(devices[i].id), devices[i].node, "%s", devices[i].says);
    }
    cr_expect_eq(numa_node_of_pci("0000:99:00.0"), -1);
}

#define ROOT  "pci0000:16/0000:16:02.0"
#define FIRST ROOT "/0000:17:00.0"

Test(numa, how_far_devices_are_apart)
{
    static const struct {
        const char *folders, *id, *node;
    } devices[] = {
        {FIRST "/0000:18:00.0", "0000:1a:00.0", "0"},
        {FIRST "/0000:18:01.0", "0000:1b:00.0", "0"},
        {FIRST "/0000:18:02.0/0000:1c:00.0/0000:1d:00.0", "0000:1e:00.0", "0"}, /* one behind */
        {"pci0000:16/0000:16:03.0", "0000:30:00.0", "0"},
        {"pci0000:40/0000:40:01.0", "0000:41:00.0", "0"},
        {"pci0000:80/0000:80:01.0", "0000:81:00.0", "1"},
        {"pci0000:c0/0000:c0:01.0", "0000:c1:00.0", "-1"},
        {"pci0000:d0/0000:d0:01.0", "0000:d1:00.0", "-1"},
        {"pci0000:16", "0000:16:05.0", "0"}, /* as virtual machines have them */
        {"platform/4000.pcie/pci0000:e0", "0000:e1:00.0", "0"},
        {"platform/5000.pcie/pci0000:f0", "0000:f1:00.0", "1"},
    };
    static const struct {
        int a, b;
        enum pci_distance distance;
    } pairs[] = {{0, 1, PCI_SWITCH}, {0, 2, PCI_SWITCHES}, {0, 3, PCI_HOST},   {0, 4, PCI_HOST},
                 {0, 5, PCI_SYSTEM}, {0, 6, PCI_SYSTEM},   {6, 7, PCI_SYSTEM}, {0, 8, PCI_HOST},
                 {0, 9, PCI_HOST},   {9, 10, PCI_SYSTEM}};
    for (size_t i = 0; i < sizeof devices / sizeof devices[0]; i++)
        numa_fake_device_in(devices[i].folders, devices[i].id, devices[i].node);
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        const char *a = devices[pairs[i].a].id, *b = devices[pairs[i].b].id;
        cr_expect_eq(numa_pci_distance(a, b), pairs[i].distance, "%s, %s", a, b);
        cr_expect_eq(numa_pci_distance(b, a), pairs[i].distance, "%s, %s", b, a);
    }
    cr_expect_eq(numa_pci_distance("0000:1a:00.0", "0000:99:00.0"), PCI_SYSTEM);
}

/* Whatever the policy was, it is again. */
Test(numa, a_node_is_preferred_for_a_while)
{
    static const int modes[] = {MPOL_DEFAULT, MPOL_PREFERRED, MPOL_BIND, MPOL_INTERLEAVE};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        struct numa_policy before;
        unsigned long nodes = modes[i] == MPOL_DEFAULT ? 0 : 5;
        numa_fake_policy_set(modes[i], nodes);
        numa_prefer(&before, 3);
        cr_expect(numa_fake_mode() == MPOL_PREFERRED && numa_fake_nodes() == 8);
        numa_restore(&before);
        cr_expect(numa_fake_mode() == modes[i] && numa_fake_nodes() == nodes, "%d", modes[i]);
    }
}

/* As where the nodes of a policy were taken from the process meanwhile. */
Test(numa, a_policy_that_cannot_be_restored_is_the_default)
{
    struct numa_policy before;
    numa_fake_policy_set(MPOL_BIND, 4);
    numa_prefer(&before, 3);
    numa_fake_refuse(MPOL_BIND);
    numa_restore(&before);
    cr_expect(numa_fake_mode() == MPOL_DEFAULT && numa_fake_nodes() == 0);
}

static void expect_no_policy(int node)
{
    struct numa_policy before;
    int set = numa_fake_set_count();
    numa_fake_policy_set(MPOL_INTERLEAVE, 6);
    numa_prefer(&before, node);
    numa_fake_fail(0, 0, 0);
    cr_expect(numa_fake_mode() == MPOL_INTERLEAVE && numa_fake_nodes() == 6);
    numa_restore(&before);
    cr_expect_eq(numa_fake_set_count(), set);
}

Test(numa, no_policy_where_there_can_be_none)
{
    static const int errors[] = {ENOSYS, EPERM, EINVAL};
    expect_no_policy(-1);
    for (size_t i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        numa_fake_fail(errors[i], 0, 0);
        expect_no_policy(2);
        numa_fake_fail(0, errors[i], 0);
        expect_no_policy(2);
    }
}

Test(numa, nodes_by_turns)
{
    struct numa_nodes nodes = {{0}};
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE) * 3;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(memory, MAP_FAILED);
    numa_nodes_add(&nodes, -1);
    numa_interleave(memory, bytes, &nodes);
    cr_expect_eq(numa_fake_bound().count, 0);
    numa_nodes_add(&nodes, 1);
    numa_nodes_add(&nodes, 4);
    numa_nodes_add(&nodes, NUMA_NODES_MAX);
    numa_fake_fail(0, 0, EPERM);
    numa_interleave(memory, bytes, &nodes);
    struct numa_fake_bound bound = numa_fake_bound();
    cr_expect(bound.memory == memory && bound.bytes == bytes && bound.mode == MPOL_INTERLEAVE);
    cr_expect_eq(bound.nodes, 1ul << 1 | 1ul << 4);
    cr_expect_not(bound.was_touched);
    cr_assert_eq(munmap(memory, bytes), 0);
}

/* The system's own calls, which may have no nodes or be forbidden: memory is there, and the policy
 * as it was. */
Test(numa, of_this_machine)
{
    struct numa_policy before, after;
    struct numa_nodes nodes = {{0}};
    size_t bytes = (size_t)sysconf(_SC_PAGESIZE) * 3;
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(memory, MAP_FAILED);
    numa_calls_use(NULL);
    numa_prefer(&before, 0);
    numa_restore(&before);
    numa_prefer(&after, 0);
    numa_restore(&after);
    cr_expect(before.is_changed == after.is_changed && before.mode == after.mode);
    cr_expect_arr_eq(before.nodes.bits, after.nodes.bits, sizeof before.nodes.bits);
    numa_nodes_add(&nodes, 0);
    numa_interleave(memory, bytes, &nodes);
    memory[bytes - 1] = 1;
    cr_assert_eq(munmap(memory, bytes), 0);
}
