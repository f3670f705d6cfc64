/* NCCL, found and opened when a program runs: phasor is built without it, and one binary serves
 * machines with and without. What is declared here are those facts of its binary interface that
 * phasor needs; they hold from NCCL_OLDEST on. */
#ifndef PHASOR_COMM_NCCL_LIBRARY_H
#define PHASOR_COMM_NCCL_LIBRARY_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* As ncclGetVersion counts: 2.27.3. Before, jobs behind calls that do not block were kept in memory
 * of the calling thread, which several communicators of one process, used by other threads than
 * made them, trod on. */
#define NCCL_OLDEST 22703

/* ncclResult_t, of which other values are errors. */
#define NCCL_SUCCESS     0
#define NCCL_IN_PROGRESS 7

/* ncclDataType_t: everything is moved as bytes. */
#define NCCL_INT8 0

struct nccl_comm; /* ncclComm_t points to one */

/* ncclUniqueId, given by value. */
struct nccl_id {
    char bytes[128];
};

/* ncclConfig_t as it was in 2.14. A later library takes so many bytes of it as `size` says, and its
 * own defaults for all that came behind `version`. */
struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
};
#define NCCL_CONFIG_MAGIC   0xcafebeefu
#define NCCL_CONFIG_VERSION 21400u

struct nccl_library {
    int version;         /* 23203 */
    char text[40];       /* "2.32.3" */
    char path[PATH_MAX]; /* as it was opened */

    int (*get_version)(int *out);
    int (*get_id)(struct nccl_id *out);
    int (*init)(struct nccl_comm **out, int size, struct nccl_id id, int member,
                struct nccl_config *config);
    int (*async_error)(struct nccl_comm *comm, int *out);
    int (*finalize)(struct nccl_comm *comm);
    int (*destroy)(struct nccl_comm *comm);
    int (*abort)(struct nccl_comm *comm);
    int (*group_start)(void);
    int (*group_end)(void);
    /* `stream` is a cudaStream_t. */
    int (*send)(const void *in, size_t count, int type, int peer, struct nccl_comm *comm,
                void *stream);
    int (*receive)(void *out, size_t count, int type, int peer, struct nccl_comm *comm,
                   void *stream);
    int (*all_gather)(const void *in, void *out, size_t count, int type, struct nccl_comm *comm,
                      void *stream);
    const char *(*error_text)(int result);
    const char *(*last_error)(struct nccl_comm *comm); /* NULL is allowed */
};

/* The one of this process: opened by the first call and never closed, the same answer ever after.
 * In the order in which it is looked for:
 *   - the file that PHASOR_NCCL names, and no other; "off": none
 *   - libnccl.so.2 as the system finds libraries
 *   - where Python's packages have it: nvidia/nccl/lib/libnccl.so.2 in (site|dist)-packages of
 *     $VIRTUAL_ENV, ~/.local, /usr/local, /usr, of the newest Python first
 * STATUS_NOT_FOUND: there is none, or it is switched off. STATUS_UNSUPPORTED: one that was found
 * cannot be used (the sentence says file, expected, found and cure); no other is tried, so that
 * nobody runs on another than he believes. Any thread. */
enum status nccl_library_get(const struct nccl_library **out, struct error *err) MUST_CHECK;

/* The one of Python's packages; false: none of them has it. */
bool nccl_library_in_packages(char out[PATH_MAX]);

#endif
