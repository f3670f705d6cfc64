/* What a kernel or a container refuses: to this thread, and what it starts, from now on. */
#ifndef TESTS_IO_FORBID_H
#define TESTS_IO_FORBID_H

/* The system call fails with `error`, as under the seccomp profile of a container. */
void forbid(long call, int error);

/* Only where its argument (0 is the first) is `value`, or has one of the bits. */
void forbid_value(long call, int argument, unsigned value, int error);
void forbid_bits(long call, int argument, unsigned bits, int error);

#endif
