/* A trace whose lanes record, and what they have kept. */
#ifndef RECORD_TOOLS_H
#define RECORD_TOOLS_H

#include "base/record.h"

#define LANES_MAX 16
#define MS        UINT64_C(1000000)
#define ROOM      (1 << 20)

/* A driver, a host, two streams, and reads. */
enum { DRIVER, HOST, ONE, OTHER, READS, LANE_COUNT };
extern struct trace_lane *lanes[LANE_COUNT];

/* The lanes, in their order, when `look` was called; those of LANE_COUNT are the first. */
extern struct record_lane_view views[LANES_MAX];
extern int view_count;

/* The thread is on the driver's lane, and on none behind trace_close. */
struct trace *trace_open(void);
void trace_close(struct trace *trace);

void look(struct trace *trace);
const struct record_node *node_at(int lane, size_t n);
void expect_needs(int lane, size_t n, const struct record_mark *needs, uint32_t count);

/* The thread's lane has one more. */
void node(const char *name);

void sleep_for(uint64_t ns);

#endif
