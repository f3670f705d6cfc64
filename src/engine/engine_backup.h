/* Which INT4 backup a model is opened with. */
#ifndef PHASOR_ENGINE_ENGINE_BACKUP_H
#define PHASOR_ENGINE_ENGINE_BACKUP_H

#include "engine/engine.h"
#include "quant/backup_file.h"

/* What `phasor quantize` makes when nobody says otherwise, and engine_backup_open. */
extern const struct backup_settings engine_backup_settings;

/* The one that params->backup_path names; else the one in the cache, which is made there once, with
 * a word in the log, where upload was asked for, or decode is to run on its weights (`is_packed`).
 * `*out` is NULL where decode is not to use any: by policy, because another way was chosen, or
 * because there is none to choose. What was asked for and cannot be is STATUS_INVALID_ARGUMENT, or
 * as making and opening a backup fail. */
enum status engine_backup_open(struct backup **out, const struct checkpoint *checkpoint,
                               const struct engine_params *params, bool is_packed,
                               struct error *err) MUST_CHECK;

/* Whether there is one that could be opened so: named, or in the cache. None is made. `*settings`
 * are those it was made with; engine_backup_settings where there is none, or one was named that
 * cannot be opened, as engine_backup_open then tells. */
bool engine_backup_is_at_hand(struct backup_settings *settings, const struct engine_params *params,
                              const struct checkpoint *checkpoint);

/* Whether the file is a backup of this checkpoint: STATUS_OK and its settings, or as
 * engine_backup_open fails of one that was named. */
enum status engine_backup_check(struct backup_settings *settings, const char *path,
                                const struct checkpoint *checkpoint, struct error *err) MUST_CHECK;

/* Of --policy exact and --expert-dtype int4 there can be one. */
enum status engine_exact_check(bool is_exact, bool has_int4_experts, struct error *err) MUST_CHECK;

/* Where experts never change their layout: one warning, if what `params` says of a way between two,
 * or of a backup, is without effect. */
void engine_backup_pass_over(const struct engine_params *params, bool has_experts);

#endif
