/* Where a backup lies when nobody says. */
#ifndef PHASOR_QUANT_BACKUP_PATH_H
#define PHASOR_QUANT_BACKUP_PATH_H

#include "model/checkpoint.h"
#include "quant/backup_format.h"

/* $PHASOR_CACHE, $XDG_CACHE_HOME/phasor or $HOME/.cache/phasor, the first that is set to an
 * absolute path; then "/<fingerprint>-<scheme><group>[-asymmetric][-zstd].backup".
 * STATUS_NOT_FOUND when none of the three is. `*out` is freed by memory_free. */
enum status backup_path_in_cache(char **out, const struct checkpoint *checkpoint,
                                 const struct backup_settings *settings,
                                 struct error *err) MUST_CHECK;

/* Makes the folders above `path` that are missing, for the user alone. */
enum status backup_path_make_folder(const char *path, struct error *err) MUST_CHECK;

#endif
