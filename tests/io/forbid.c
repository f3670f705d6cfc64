#define _GNU_SOURCE
#include "forbid.h"

#include <criterion/criterion.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>

/* Where the low half of an argument lies: this runs on little-endian machines alone. */
#define ARGUMENT(i) (unsigned)(offsetof(struct seccomp_data, args) + 8 * (size_t)(i))

static void install(struct sock_filter *filter, unsigned short count)
{
    struct sock_fprog program = {count, filter};
    cr_assert_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    cr_assert_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

static void forbid_where(long call, int argument, unsigned test, unsigned value, int error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)call, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, ARGUMENT(argument)),
        BPF_JUMP(BPF_JMP | test | BPF_K, value, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (unsigned)error),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    install(filter, sizeof filter / sizeof filter[0]);
}

void forbid(long call, int error)
{
    forbid_where(call, 0, BPF_JGE, 0, error); /* whatever the argument */
}

void forbid_value(long call, int argument, unsigned value, int error)
{
    forbid_where(call, argument, BPF_JEQ, value, error);
}

void forbid_bits(long call, int argument, unsigned bits, int error)
{
    forbid_where(call, argument, BPF_JSET, bits, error);
}
