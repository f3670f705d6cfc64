#include "engine/plan_rows.h"

/* Both stay NULL where there are none. */
static enum status tokenizer_read(struct tokenizer **tokenizer,
                                  const struct chat_template **chat_template, const char *dir,
                                  struct error *err)
{
    struct error ignored; /* rows that need a template are left out, as those that are wrong */
    enum status status = tokenizer_open(tokenizer, dir, err);
    if (status == STATUS_NOT_FOUND)
        return STATUS_OK;
    if (status == STATUS_OK && chat_template_of(chat_template, *tokenizer, &ignored) != STATUS_OK)
        *chat_template = NULL;
    return status;
}

static enum status none_to_plan_for(const char *path, bool has_tokenizer, struct error *err)
{
    return error_set(
        err, STATUS_INVALID_ARGUMENT,
        "%s: there is no row to plan for%s; phasor run tells of each row what is wrong "
        "with it",
        path,
        has_tokenizer ? ""
                      : ", and without a tokenizer.json beside the model's config "
                        "only prompts of token ids count");
}

static enum status read_with(struct batch_lengths *out, const struct batch_lengths_params *params,
                             const char *path, struct error *err)
{
    struct batch_lengths_params whole = *params;
    TRY(batch_reader_open(&whole.reader, path, BATCH_LINE_BYTES_MAX, NULL, NULL, err));
    enum status status = batch_lengths_read(out, &whole, err);
    batch_reader_close(whole.reader);
    if (status != STATUS_OK || out->load.sequences > 0)
        return status;
    bool is_empty = out->row_count == 0;
    batch_lengths_deinit(out);
    if (is_empty)
        return error_set(err, STATUS_INVALID_ARGUMENT,
                         "%s has no rows; a batch file has one on each line", path);
    return none_to_plan_for(path, params->tokenizer != NULL, err);
}

enum status plan_rows_read(struct batch_lengths *out, const char *path, const char *dir,
                           const struct model_config *config, bool shares_prefixes,
                           struct error *err)
{
    struct tokenizer *tokenizer = NULL;
    const struct chat_template *chat_template = NULL;
    TRY(tokenizer_read(&tokenizer, &chat_template, dir, err));
    enum status status = read_with(out,
                                   &(struct batch_lengths_params){
                                       .tokenizer = tokenizer,
                                       .chat_template = chat_template,
                                       .context_max = config->position_count_max,
                                       .shares_prefixes = shares_prefixes,
                                   },
                                   path, err);
    tokenizer_close(tokenizer);
    return status;
}
