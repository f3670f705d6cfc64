#include "report_tools.h"

void rig_init(struct rig *rig, int rank_count)
{
    static char work[] = "work", between[] = "between", attention[] = "attention",
                experts[] = "experts", transition[] = "transition", dispatch[] = "dispatch",
                combine[] = "combine";
    static char *strings[] = {work};
    static char *stages[] = {between, attention, experts, transition};
    static char *tags[] = {dispatch, combine};
    *rig = (struct rig){.recording = {.rank_count = rank_count}};
    rig->group.size = rank_count;
    for (int r = 0; r < rank_count; r++)
        rig->group.ranks[r] = (uint8_t)r;
    rig->recording.strings = strings;
    rig->recording.string_count = 1;
    rig->recording.stage_names = stages;
    rig->recording.stage_count = 4;
    rig->recording.tag_names = tags;
    rig->recording.tag_count = 2;
    rig->recording.lanes = rig->lanes;
    rig->recording.nodes = rig->nodes;
    rig->recording.needs = rig->needs;
    rig->recording.collectives = rig->calls;
    rig->recording.groups = &rig->group;
    rig->recording.group_count = 1;
    rig->recording.counts = rig->counts;
    rig->simulation.times = rig->times;
}

void rig_lane(struct rig *rig, enum lane_kind kind, int rank)
{
    rig->lanes[rig->recording.lane_count++] =
        (struct recording_lane){.kind = kind, .rank = rank, .first = rig->recording.node_count};
}

uint32_t rig_node(struct rig *rig, enum record_phase phase, int stage, double begin, double end)
{
    struct recording_lane *lane = &rig->lanes[rig->recording.lane_count - 1];
    uint32_t node = rig->recording.node_count++;
    rig->nodes[node] = (struct recording_node){.kind = end > begin ? NODE_COMPUTE : NODE_WAIT,
                                               .phase = (uint8_t)phase,
                                               .stage = (uint8_t)stage,
                                               .layer = -1,
                                               .need_first = rig->recording.need_count};
    rig->times[node] = (struct node_time){begin, end, lane->count == 0 ? UINT32_MAX : node - 1};
    lane->count++;
    if (end > rig->simulation.seconds)
        rig->simulation.seconds = end;
    return node;
}

uint32_t rig_call(struct rig *rig, enum collective_op op, int tag, int64_t bytes,
                  enum record_phase phase, double begin, double end)
{
    const struct recording_lane *lane = &rig->lanes[rig->recording.lane_count - 1];
    uint32_t call = rig->recording.collective_count++, node = rig_node(rig, phase, 0, begin, end);
    rig->nodes[node].kind = NODE_COLLECTIVE;
    rig->nodes[node].collective = call;
    rig->calls[call] = (struct recording_collective){.op = (uint8_t)op,
                                                     .member = (uint8_t)lane->rank,
                                                     .tag = (uint8_t)tag,
                                                     .count_first = rig->recording.count_count};
    for (int r = 0; r < rig->group.size; r++) {
        bool is_own = op == COLLECTIVE_OP_ALL_TO_ALL && r == lane->rank;
        bool is_one = op != COLLECTIVE_OP_ALL_REDUCE || r == 0;
        rig->counts[rig->recording.count_count++] = is_own || !is_one ? 0 : bytes;
    }
    return node;
}

void rig_need(struct rig *rig, uint32_t node)
{
    uint32_t last = rig->recording.node_count - 1;
    rig->needs[rig->recording.need_count++] = node;
    rig->nodes[last].need_count++;
    rig->times[last].cause = node;
}
