/* Brings files to the disk beside the thread that writes them: a thread of its own syncs them a
 * while after the first line that is not there yet, however long the writer is away in a pass. */
#ifndef PHASOR_ENGINE_BATCH_SYNC_H
#define PHASOR_ENGINE_BATCH_SYNC_H

#include "base/status.h"

#define BATCH_SYNC_FILES 2

struct batch_sync;

/* `fds` are borrowed until batch_sync_stop; -1: there is no such file, or none that can be synced.
 * A line is on its way to the disk `delay_seconds` after it was noted at the latest. */
enum status batch_sync_start(struct batch_sync **out, const int fds[BATCH_SYNC_FILES],
                             double delay_seconds, struct error *err) MUST_CHECK;

/* A line was written to `fds[file]`. NULL is allowed, here and below: nothing is synced. */
void batch_sync_note(struct batch_sync *sync, int file);

/* The errno of the first sync that failed, with its file; 0: none has. There are none behind it. */
int batch_sync_failure(struct batch_sync *sync, int *file);

/* Ends the thread, brings the rest to the disk, frees `sync`, and answers as batch_sync_failure. */
int batch_sync_stop(struct batch_sync *sync, int *file);

#endif
