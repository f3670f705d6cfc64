#include "example.h"

static void stream(struct rig *rig, int rank, double attention_seconds)
{
    rig_lane(rig, LANE_STREAM, rank);
    uint32_t node = rig_node(rig, RECORD_PREFILL, RIG_ATTENTION, 0, attention_seconds);
    rig->nodes[node].work = WORK_ATTENTION;
    rig->nodes[node].flops = 1000000000;
    rig->nodes[node].bytes = 1000000;
    node = rig_call(rig, COLLECTIVE_OP_ALL_TO_ALL, 0, 1 << 20, RECORD_PREFILL, 0, 1e-4);
    rig->calls[rig->nodes[node].collective].number = 1;
    rig_node(rig, RECORD_DECODE, RIG_EXPERTS, 0, 1e-3);
    rig->nodes[rig_node(rig, RECORD_DECODE, 0, 0, 1e-4)].kind = NODE_COPY;
}

void example_fill(struct rig *rig)
{
    static char about[] = "{\"model\": \"example\", \"plan\": \"dp2|ep2\", \"prefill_tokens\": 64, "
                          "\"decode_tokens\": 2}";
    rig_init(rig, 2);
    rig->recording.about = about;
    rig->recording.wall_seconds = 0.01;
    stream(rig, 0, 1e-3);
    stream(rig, 1, 2e-3);
    rig_lane(rig, LANE_READS, 0);
    rig->nodes[rig_node(rig, RECORD_PREFILL, RIG_TRANSITION, 0, 1e-4)].kind = NODE_READ;
    rig_lane(rig, LANE_HOST, -1);
    rig_node(rig, RECORD_PREFILL, 0, 0, 1e-5);
    rig_node(rig, RECORD_DECODE, 0, 0, 0);
    rig_need(rig, 3);
    for (uint32_t i = 0; i < rig->recording.node_count; i++) {
        rig->nodes[i].duration_ns = (uint64_t)((rig->times[i].end - rig->times[i].begin) * 1e9);
        rig->nodes[i].threads = 1;
        if (rig->nodes[i].kind == NODE_COPY || rig->nodes[i].kind == NODE_READ)
            rig->nodes[i].bytes = 1 << 20;
    }
}
