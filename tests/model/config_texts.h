/* Small configs in the form of each architecture, with ' for ". */
#ifndef TESTS_MODEL_CONFIG_TEXTS_H
#define TESTS_MODEL_CONFIG_TEXTS_H

#define MIXTRAL_JSON                                                                               \
    "{'architectures':['MixtralForCausalLM'],'model_type':'mixtral','vocab_size':256,"             \
    "'hidden_size':64,'intermediate_size':96,'num_hidden_layers':4,'num_attention_heads':4,"       \
    "'num_key_value_heads':2,'num_local_experts':8,'num_experts_per_tok':2,"                       \
    "'max_position_embeddings':2048,'rms_norm_eps':1e-05,'rope_theta':1000000.0,"                  \
    "'hidden_act':'silu','sliding_window':null,'tie_word_embeddings':false,'bos_token_id':1,"      \
    "'eos_token_id':2,'torch_dtype':'bfloat16'}"

#define QWEN2_JSON                                                                                 \
    "{'architectures':['Qwen2MoeForCausalLM'],'model_type':'qwen2_moe','vocab_size':256,"          \
    "'hidden_size':64,'intermediate_size':128,'num_hidden_layers':4,'num_attention_heads':4,"      \
    "'num_key_value_heads':4,'num_experts':6,'num_experts_per_tok':3,"                             \
    "'moe_intermediate_size':48,'shared_expert_intermediate_size':80,'decoder_sparse_step':1,"     \
    "'max_position_embeddings':2048,'max_window_layers':3,'rms_norm_eps':1e-06,"                   \
    "'rope_theta':1000000.0,'use_sliding_window':false,'sliding_window':32768,"                    \
    "'torch_dtype':'bfloat16'}"

#define QWEN3_JSON                                                                                 \
    "{'architectures':['Qwen3MoeForCausalLM'],'model_type':'qwen3_moe','vocab_size':256,"          \
    "'hidden_size':64,'intermediate_size':128,'num_hidden_layers':4,'num_attention_heads':4,"      \
    "'num_key_value_heads':2,'head_dim':32,'num_experts':8,'num_experts_per_tok':2,"               \
    "'moe_intermediate_size':32,'decoder_sparse_step':1,'mlp_only_layers':[],"                     \
    "'max_position_embeddings':2048,'max_window_layers':4,'rms_norm_eps':1e-06,"                   \
    "'rope_scaling':null,'rope_theta':1000000.0,'use_sliding_window':false,"                       \
    "'sliding_window':null,'norm_topk_prob':true,'attention_bias':false,"                          \
    "'torch_dtype':'bfloat16'}"

#include "model/config.h"

/* Parses `base` with `changes` ('{}' for none); fails the test when it is refused. */
struct model_config config_of(const char *base, const char *changes);

/* A table of changes, each of which must be refused. */
struct config_row {
    const char *base;
    const char *changes;
    enum status status;
    const char *fragments;
};
void check_config_rows(const struct config_row *rows, size_t count);
#define CHECK_CONFIG_ROWS(rows) check_config_rows(rows, sizeof rows / sizeof *rows)

#endif
