/* What phasor inspect prints of plans. */
#ifndef PHASOR_CLI_PLAN_TABLE_H
#define PHASOR_CLI_PLAN_TABLE_H

#include <jansson.h>
#include <stdbool.h>

/* `root` is the object of phasor_inspect, with "plans". A list has a line for each plan; otherwise
 * the one plan is shown device by device. */
void plan_table_print(const json_t *root, bool is_list);

#endif
