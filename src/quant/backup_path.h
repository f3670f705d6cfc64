/* Where a backup lies when nobody says. */
#ifndef PHASOR_QUANT_BACKUP_PATH_H
#define PHASOR_QUANT_BACKUP_PATH_H

#include "model/checkpoint.h"
#include "quant/backup_format.h"

/* In the cache (base/cache_folder.h), "<fingerprint>-<scheme><group>[-asymmetric][-zstd].backup".
 * STATUS_NOT_FOUND when there is no such folder. `*out` is freed by memory_free. */
enum status backup_path_in_cache(char **out, const struct checkpoint *checkpoint,
                                 const struct backup_settings *settings,
                                 struct error *err) MUST_CHECK;

#endif
