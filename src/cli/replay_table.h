/* The report of a replay as tables. */
#ifndef PHASOR_CLI_REPLAY_TABLE_H
#define PHASOR_CLI_REPLAY_TABLE_H

#include <jansson.h>

/* `root`: what phasor_replay made. */
void replay_table_print(const json_t *root);

#endif
