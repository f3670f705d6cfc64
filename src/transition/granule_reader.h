/* The granules of a backup, read ahead of who checks and uses them: for each rank a queue of its
 * own (io/read_queue.h), into a ring of buffers that bounds what is held.
 *
 * Where the bytes come from is the same for all ranks, and is chosen when the readers are opened:
 * the tier by what fits (io/read_tier.h), and io_uring unless one rank cannot have it. */
#ifndef PHASOR_TRANSITION_GRANULE_READER_H
#define PHASOR_TRANSITION_GRANULE_READER_H

#include "base/log.h"
#include "base/record.h"
#include "comm/box.h"
#include "io/read_queue.h"
#include "io/read_tier.h"
#include "quant/backup_file.h"

struct granule_reader_params {
    struct box *box;
    const struct backup *backup; /* borrowed */
    int hold_count; /* granules that a rank has between `next` and `release`, at most */
    uint64_t memory_available, memory_lockable; /* see read_tier_facts */
    /* Transitions will read by them again and again; else no memory is locked, and no word said. */
    bool is_sure;
    const struct uring_calls *uring; /* tests: see read_queue_params; NULL */
    struct log_sink log;
};

/* Opens the readers of all ranks; called by the thread that drives the box. Takes all that reading
 * needs, and for the locked tier reads the backup, each rank a share. What makes reading slower and
 * can be mended is told by one warning with the cure: no io_uring (all ranks read by threads then),
 * no O_DIRECT, no registered buffers where less may be locked than is usual.
 *
 * STATUS_UNSUPPORTED: a granule is larger than a read may be. Else failures are of memory, or of
 * the file. */
struct granule_readers;
enum status granule_readers_open(struct granule_readers **out,
                                 const struct granule_reader_params *params,
                                 struct error *err) MUST_CHECK;
void granule_readers_close(struct granule_readers *readers); /* NULL is allowed */

/* Host memory that a rank's reader takes, the locked tier aside. */
uint64_t granule_reader_bytes(const struct backup_form *form, int hold_count);

/* How the ranks read (what is said is true of all; the note is of one), and what they have read
 * together. No rank reads. */
struct read_queue_use granule_readers_use(const struct granule_readers *readers);
enum read_tier granule_readers_tier(const struct granule_readers *readers);

/* "disk, by io_uring, O_DIRECT": for who looks where weights come from. Any thread. */
#define GRANULE_SOURCE_BYTES 64
void granule_readers_source(char out[GRANULE_SOURCE_BYTES], const struct granule_readers *readers);

/* A rank's; what follows is called by one thread at a time, which does not end while reads are in
 * flight. */
struct granule_reader *granule_reader_of(const struct granule_readers *readers, int rank);

/* Granules first + numbers[i] for i = 0 .. count - 1. `numbers` is borrowed until all have come, or
 * the list is given up. */
struct granule_list {
    const int64_t *numbers;
    int64_t count, first;
};

/* Begins with a list, whose granules are each to come once, in any order. What is left of an
 * earlier one is given up; but not what is there of this one, where granule_reader_follow has named
 * it. STATUS_IO: giving up hangs. */
enum status granule_reader_begin(struct granule_reader *reader, const struct granule_list *list,
                                 struct error *err) MUST_CHECK;

/* The list that will be begun next, most likely: the disk goes on with it, as far as there are
 * buffers, when it has all that is left of this one. */
void granule_reader_follow(struct granule_reader *reader, const struct granule_list *list);

struct granule {
    int64_t i;         /* in the list */
    int64_t number;    /* in the backup */
    const char *bytes; /* host memory [backup_granule_bytes], not checked */
    int buffer;        /* private */
    /* Of a recording: where the thread stood that asked for it, when, and when it was seen to be
     * there (record_now). */
    struct record_mark asked;
    uint64_t asked_ns, come_ns;
};

/* The next granule that has been read; it is the caller's until it is released. At most hold_count
 * are held. `*has` is false where none came within `seconds` (0: only looks), or all have come.
 * Fails as read_queue_wait does for this list; then granule_reader_stop is to follow. What fails of
 * the list that follows is read again when that is begun. */
enum status granule_reader_next(struct granule_reader *reader, struct granule *out, bool *has,
                                double seconds, struct error *err) MUST_CHECK;
void granule_reader_release(struct granule_reader *reader, const struct granule *granule);

/* Gives up what is left of the list, what follows it, and what is held. Returns when nothing is
 * being read; or when that hangs for longer than the patience, which the next granule_reader_begin
 * tells. */
void granule_reader_stop(struct granule_reader *reader);

#endif
