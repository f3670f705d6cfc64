/* phasor replay: when everything in a recording would have happened on a box, as tables or as JSON.
 */
#include <jansson.h>
#include <stdio.h>

#include "answer.h"
#include "commands.h"
#include "replay_table.h"

struct replay_values {
    const char *box, *trace;
    bool modelled, without_host, scale, json;
};

static struct replay_values values;

#define AT(member) offsetof(struct replay_values, member)

static const struct cli_option options[] = {
    {"box", 0, OPTION_FILE, AT(box), "NAME",
     "devices and links to replay on: a name of those that come with phasor, such as a6000x4, or a "
     "file (docs/box-format.md); without it, as it was recorded",
     0, 0, NULL},
    {"modelled", 0, OPTION_FLAG, AT(modelled), NULL,
     "computation lasts as long as the box's devices would take, not as recorded", 0, 0, NULL},
    {"without-host", 0, OPTION_FLAG, AT(without_host), NULL,
     "with --modelled: what the host did takes no time; it is the recording machine's, not the "
     "box's",
     0, 0, NULL},
    {"scale", 0, OPTION_FLAG, AT(scale), NULL,
     "links as much slower as the device that was recorded computes than the box's; times of "
     "decode are not valid then",
     0, 0, NULL},
    {"trace", 0, OPTION_FILE, AT(trace), "FILE",
     "write what ran when, for ui.perfetto.dev (docs/trace.md)", 0, 0, NULL},
    {"json", 0, OPTION_FLAG, AT(json), NULL, "print JSON; the keys are in phasor(1)", 0, 0, NULL},
    {.name = NULL},
};

static int run(const struct cli_command *command, char **operands, int operand_count)
{
    (void)operand_count;
    char *text;
    struct phasor_error err;
    struct phasor_replay_params params = phasor_replay_params_default();
    params.recording_path = operands[0];
    params.box = values.box;
    params.modelled = values.modelled;
    params.leaves_out_host = values.without_host;
    params.scale = values.scale;
    params.trace_path = values.trace;
    enum phasor_status status = phasor_replay(&text, &params, &err);
    if (status == PHASOR_INVALID_ARGUMENT)
        return options_mistake(command, "%s", err.message);
    if (status != PHASOR_OK)
        return fail(&err);
    int code = answer_show(text, values.json, replay_table_print);
    phasor_text_free(text);
    return code;
}

const struct cli_command command_replay = {
    .name = "replay",
    .operands = "RECORDING",
    .summary = "tell when a recorded run would have happened on another machine",
    .options = options,
    .values = &values,
    .operand_min = 1,
    .operand_max = 1,
    .run = run,
};
