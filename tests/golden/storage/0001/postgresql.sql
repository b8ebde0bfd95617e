--
-- PostgreSQL database dump
--


-- Dumped from database version 15.18 (Debian 15.18-0+deb12u1)
-- Dumped by pg_dump version 15.18 (Debian 15.18-0+deb12u1)

SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;

SET default_tablespace = '';

SET default_table_access_method = heap;

--
-- Name: calibrations; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.calibrations (
    tenant character varying(64) NOT NULL,
    id character varying(80) NOT NULL,
    created_at timestamp with time zone NOT NULL,
    gpu character varying(64) NOT NULL,
    gpus_per_node integer,
    document text NOT NULL
);


--
-- Name: idempotency_keys; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.idempotency_keys (
    tenant character varying(64) NOT NULL,
    key character varying(255) NOT NULL,
    body_sha256 character varying(64) NOT NULL,
    plan_id character varying(80) NOT NULL,
    created_at timestamp with time zone NOT NULL
);


--
-- Name: job_events; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.job_events (
    tenant character varying(64) NOT NULL,
    job_id character varying(80) NOT NULL,
    seq integer NOT NULL,
    type character varying(16) NOT NULL,
    at timestamp with time zone NOT NULL,
    evaluated double precision,
    best_s double precision,
    bound_s double precision
);


--
-- Name: jobs; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.jobs (
    tenant character varying(64) NOT NULL,
    id character varying(80) NOT NULL,
    kind character varying(16) NOT NULL,
    status character varying(16) NOT NULL,
    payload text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    started_at timestamp with time zone,
    finished_at timestamp with time zone,
    attempts integer NOT NULL,
    time_limit_s double precision NOT NULL,
    owner character varying(80),
    lease_until timestamp with time zone,
    cancel_requested boolean NOT NULL,
    error text
);


--
-- Name: keys; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.keys (
    tenant character varying(64) NOT NULL,
    id character varying(80) NOT NULL,
    name character varying(80) NOT NULL,
    secret_sha256 character varying(64) NOT NULL,
    created_at timestamp with time zone NOT NULL,
    revoked_at timestamp with time zone
);


--
-- Name: meshwright_version; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.meshwright_version (
    version_num character varying(32) NOT NULL
);


--
-- Name: observations; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.observations (
    tenant character varying(64) NOT NULL,
    id character varying(80) NOT NULL,
    created_at timestamp with time zone NOT NULL,
    plan_id character varying(80),
    rank integer,
    document text NOT NULL
);


--
-- Name: plans; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.plans (
    tenant character varying(64) NOT NULL,
    id character varying(80) NOT NULL,
    created_at timestamp with time zone NOT NULL,
    request_digest character varying(80) NOT NULL,
    live_digest character varying(80),
    response text,
    headline text
);


--
-- Name: ranked_plans; Type: TABLE; Schema: public; Owner: -
--

CREATE TABLE public.ranked_plans (
    tenant character varying(64) NOT NULL,
    plan_id character varying(80) NOT NULL,
    rank integer NOT NULL,
    document text NOT NULL
);


--
-- Data for Name: calibrations; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.calibrations VALUES ('red', '21fff3c1703339083741b82e46f3d8fd61a976340d9850575c5f7845027848d5', '2026-11-29 12:14:59.794255+00', 'H100-SXM-80GB', 8, '{"id":"21fff3c1703339083741b82e46f3d8fd61a976340d9850575c5f7845027848d5","created_at":"2026-01-01T00:00:00Z","device":{"generation":"hopper","link_bytes_per_s":450000000000.0,"memory_bytes_per_s":3352000000000.0,"num_sms":132,"peak_flops_per_s":{"bf16":989400000000000.0}},"fingerprint":{"gpu":"H100-SXM-80GB","gpus_per_node":8},"gemm":[{"k":8192,"m":8192,"n":8192,"time_s":0.0016}],"kind":"measured","name":"a measurement of the release before","schema_version":1,"source":"made for a test, measured nowhere"}
');


--
-- Data for Name: idempotency_keys; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.idempotency_keys VALUES ('red', 'again', '3678746be307fb34351b882f9b8566fd8395b6f37c1f7dd2d41a505869a181d5', 'plan-200e744e2c3e96592982', '2026-11-29 12:14:59.816851+00');
INSERT INTO public.idempotency_keys VALUES ('blue', 'again', '3678746be307fb34351b882f9b8566fd8395b6f37c1f7dd2d41a505869a181d5', 'plan-98a909cbcad28ba759bf', '2026-11-29 12:14:59.889123+00');


--
-- Data for Name: job_events; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.job_events VALUES ('red', 'plan-200e744e2c3e96592982', 1, 'queued', '2026-11-29 12:14:59.812649+00', NULL, NULL, NULL);
INSERT INTO public.job_events VALUES ('red', 'plan-200e744e2c3e96592982', 2, 'started', '2026-11-29 12:14:59.82028+00', NULL, NULL, NULL);
INSERT INTO public.job_events VALUES ('red', 'plan-200e744e2c3e96592982', 3, 'progress', '2026-11-29 12:14:59.857342+00', 127, 3.388365919316894, 5.698872972960006);
INSERT INTO public.job_events VALUES ('red', 'plan-200e744e2c3e96592982', 4, 'succeeded', '2026-11-29 12:14:59.872641+00', NULL, NULL, NULL);
INSERT INTO public.job_events VALUES ('blue', 'plan-98a909cbcad28ba759bf', 1, 'queued', '2026-11-29 12:14:59.887588+00', NULL, NULL, NULL);
INSERT INTO public.job_events VALUES ('blue', 'plan-98a909cbcad28ba759bf', 2, 'started', '2026-11-29 12:14:59.891667+00', NULL, NULL, NULL);
INSERT INTO public.job_events VALUES ('blue', 'plan-98a909cbcad28ba759bf', 3, 'progress', '2026-11-29 12:14:59.911079+00', 127, 3.388365919316894, 5.698872972960006);
INSERT INTO public.job_events VALUES ('blue', 'plan-98a909cbcad28ba759bf', 4, 'succeeded', '2026-11-29 12:14:59.926537+00', NULL, NULL, NULL);
INSERT INTO public.job_events VALUES ('blue', 'plan-5aa3a1f95f05ab73c584', 1, 'queued', '2026-11-29 12:14:59.937951+00', NULL, NULL, NULL);
INSERT INTO public.job_events VALUES ('blue', 'plan-5aa3a1f95f05ab73c584', 2, 'started', '2026-11-29 12:14:59.941212+00', NULL, NULL, NULL);
INSERT INTO public.job_events VALUES ('blue', 'plan-1e5225c96f406b662b21', 1, 'queued', '2026-11-29 12:14:59.957119+00', NULL, NULL, NULL);
INSERT INTO public.job_events VALUES ('blue', 'plan-419e60d243a6b724d1fd', 1, 'queued', '2026-11-29 12:14:59.969115+00', NULL, NULL, NULL);
INSERT INTO public.job_events VALUES ('blue', 'plan-5eba63ff5bc6bd1f0aed', 1, 'queued', '2026-11-29 12:14:59.982774+00', NULL, NULL, NULL);
INSERT INTO public.job_events VALUES ('blue', 'plan-5aa3a1f95f05ab73c584', 3, 'progress', '2026-11-29 12:14:59.989346+00', 107, 6.761501257503921, 8.945442600234303);
INSERT INTO public.job_events VALUES ('blue', 'plan-1e5225c96f406b662b21', 2, 'cancelled', '2026-11-29 12:14:59.999009+00', NULL, NULL, NULL);
INSERT INTO public.job_events VALUES ('blue', 'plan-5aa3a1f95f05ab73c584', 4, 'succeeded', '2026-11-29 12:15:00.032608+00', NULL, NULL, NULL);
INSERT INTO public.job_events VALUES ('blue', 'plan-419e60d243a6b724d1fd', 2, 'started', '2026-11-29 12:15:00.041427+00', NULL, NULL, NULL);


--
-- Data for Name: jobs; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.jobs VALUES ('red', 'plan-200e744e2c3e96592982', 'plan', 'succeeded', '{"request":{"model":{"preset":"llama-3.1-8b"},"cluster":{"gpu":"H100-SXM-80GB","num_nodes":1,"gpus_per_node":8,"intra_node":"nvswitch","nics_per_node":8,"nic_gbit_per_s":400,"network":{"fabric":"infiniband"}},"training":{"seq_length":4096,"global_batch_size":64,"precision":"bf16","framework":"fsdp"},"top_k":1},"calibrations":{}}', '2026-11-29 12:14:59.811243+00', '2026-11-29 12:14:59.818965+00', '2026-11-29 12:14:59.870856+00', 1, 600, NULL, NULL, false, NULL);
INSERT INTO public.jobs VALUES ('blue', 'plan-98a909cbcad28ba759bf', 'plan', 'succeeded', '{"request":{"model":{"preset":"llama-3.1-8b"},"cluster":{"gpu":"H100-SXM-80GB","num_nodes":1,"gpus_per_node":8,"intra_node":"nvswitch","nics_per_node":8,"nic_gbit_per_s":400,"network":{"fabric":"infiniband"}},"training":{"seq_length":4096,"global_batch_size":64,"precision":"bf16","framework":"fsdp"},"top_k":1},"calibrations":{}}', '2026-11-29 12:14:59.886925+00', '2026-11-29 12:14:59.890836+00', '2026-11-29 12:14:59.925487+00', 1, 600, NULL, NULL, false, NULL);
INSERT INTO public.jobs VALUES ('blue', 'plan-5eba63ff5bc6bd1f0aed', 'plan', 'queued', '{"request":{"model":{"preset":"llama-3.1-8b"},"cluster":{"gpu":"H100-SXM-80GB","num_nodes":1,"gpus_per_node":8,"intra_node":"nvswitch","nics_per_node":8,"nic_gbit_per_s":400,"network":{"fabric":"infiniband"}},"training":{"seq_length":4096,"global_batch_size":1024,"precision":"bf16","framework":"fsdp"},"top_k":1,"wait_s":0},"calibrations":{}}', '2026-11-29 12:14:59.980948+00', NULL, NULL, 0, 600, NULL, NULL, false, NULL);
INSERT INTO public.jobs VALUES ('blue', 'plan-1e5225c96f406b662b21', 'plan', 'cancelled', '{"request":{"model":{"preset":"llama-3.1-8b"},"cluster":{"gpu":"H100-SXM-80GB","num_nodes":1,"gpus_per_node":8,"intra_node":"nvswitch","nics_per_node":8,"nic_gbit_per_s":400,"network":{"fabric":"infiniband"}},"training":{"seq_length":4096,"global_batch_size":256,"precision":"bf16","framework":"fsdp"},"top_k":1,"wait_s":0},"calibrations":{}}', '2026-11-29 12:14:59.951851+00', NULL, '2026-11-29 12:14:59.997183+00', 0, 600, NULL, NULL, false, NULL);
INSERT INTO public.jobs VALUES ('blue', 'plan-5aa3a1f95f05ab73c584', 'plan', 'succeeded', '{"request":{"model":{"preset":"llama-3.1-8b"},"cluster":{"gpu":"H100-SXM-80GB","num_nodes":1,"gpus_per_node":8,"intra_node":"nvswitch","nics_per_node":8,"nic_gbit_per_s":400,"network":{"fabric":"infiniband"}},"training":{"seq_length":4096,"global_batch_size":128,"precision":"bf16","framework":"fsdp"},"top_k":1,"wait_s":0},"calibrations":{}}', '2026-11-29 12:14:59.93732+00', '2026-11-29 12:14:59.940428+00', '2026-11-29 12:15:00.030474+00', 1, 600, NULL, NULL, false, NULL);
INSERT INTO public.jobs VALUES ('blue', 'plan-419e60d243a6b724d1fd', 'plan', 'running', '{"request":{"model":{"preset":"llama-3.1-8b"},"cluster":{"gpu":"H100-SXM-80GB","num_nodes":1,"gpus_per_node":8,"intra_node":"nvswitch","nics_per_node":8,"nic_gbit_per_s":400,"network":{"fabric":"infiniband"}},"training":{"seq_length":4096,"global_batch_size":512,"precision":"bf16","framework":"fsdp"},"top_k":1,"wait_s":0},"calibrations":{}}', '2026-11-29 12:14:59.964008+00', '2026-11-29 12:15:00.039119+00', NULL, 1, 600, 'vm:9715:7ba37774', '2026-11-29 12:15:10.039119+00', false, NULL);


--
-- Data for Name: keys; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.keys VALUES ('red', 'key-8a39740763df', 'laptop', '93d1db955a701fb8860a4f82d7b0b637d950234cfb60399380581060655e4771', '2026-11-29 12:14:54.423096+00', NULL);
INSERT INTO public.keys VALUES ('blue', 'key-2c22d8c5e4d3', 'laptop', '58317edc4e665d9e05998913d342161deab4a0be5fd03bb86b99dca50f807091', '2026-11-29 12:14:55.028056+00', NULL);
INSERT INTO public.keys VALUES ('red', 'key-7eca815b5595', 'lost', 'bd3f92d798b60533901bcc53b6c7406eac2d9ba7cf581632b8ede160f3bf5e3c', '2026-11-29 12:14:55.637341+00', '2026-11-29 12:14:56.98312+00');


--
-- Data for Name: meshwright_version; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.meshwright_version VALUES ('0001');


--
-- Data for Name: observations; Type: TABLE DATA; Schema: public; Owner: -
--



--
-- Data for Name: plans; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.plans VALUES ('red', 'plan-200e744e2c3e96592982', '2026-11-29 12:14:59.811243+00', 'c62b7839ac9158998f8431eaab855ee79d283c9bda3967c0e6c1fb71f178cf7b', 'c62b7839ac9158998f8431eaab855ee79d283c9bda3967c0e6c1fb71f178cf7b', '{"id":"plan-200e744e2c3e96592982","status":"succeeded","created_at":"2026-11-29T12:14:59.811243Z","product_version":"0.1.0","schema_version":1,"request":{"model":{"name":"llama-3.1-8b","num_layers":32,"hidden_size":4096,"num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"intermediate_size":14336,"vocab_size":128256,"gated_mlp":true,"tie_word_embeddings":false,"norm":"rmsnorm","norm_bias":false,"norm_weight":true,"norms_per_layer":2,"qk_norm":"none","position_embedding":"rope","max_position_embeddings":131072,"mlp_bias":false,"head_bias":false,"parallel_block":false,"embedding_norm":false,"final_norm":true,"attention_sinks":false,"mtp_num_layers":0,"attention_bias":false},"cluster":{"name":"1x8 H100-SXM-80GB","gpu":"H100-SXM-80GB","num_nodes":1,"gpus_per_node":8,"nvlink_domain_gpus":8,"intra_node":"nvswitch","pcie":{"gpus_per_switch":2,"gpus_per_socket":4},"nics_per_node":8,"nic_gbit_per_s":400.0,"network":{"fabric":"infiniband","rail_optimized":true,"oversubscription":1.0,"latency_us":4.0},"host_link_gb_per_s":63.0,"reserved_memory_gib":0.0},"training":{"seq_length":4096,"global_batch_size":64,"precision":"bf16","framework":"fsdp","framework_version":"2.8","software_date":"2025-08","transformer_impl":"local","attention":"flash","attention_kernel":"sdpa","cross_entropy":"unfused","fp8_recipe":"tensorwise","optimizer":"adam","param_dtype":"fp32","main_param_dtype":"none","grad_dtype":"fp32","grad_reduce_dtype":"bf16","optimizer_state_dtype":"fp32","compile":false,"cuda_graphs":false,"expandable_segments":false,"dropout":0.0},"constraints":{"fixed":{"tp":null,"pp":null,"dp":null,"cp":null,"ep":null,"etp":null,"vpp":null,"zero":null,"zero_shard_size":null,"zero_param_shard_size":null,"grad_sync":null,"sequence_parallel":null,"micro_batch_size":null,"recompute":null,"recompute_method":null,"recompute_num_layers":null,"recompute_modules":null,"recompute_per_stage":null,"schedule":null,"layers_per_stage":null,"pool_per_stage":null,"cp_comm":null,"moe_dispatcher":null,"overlap":null,"offload":null},"allowed":{"tp":null,"pp":null,"dp":null,"cp":null,"ep":null,"etp":null,"vpp":null,"zero":null,"zero_shard_size":null,"zero_param_shard_size":null,"grad_sync":null,"sequence_parallel":null,"micro_batch_size":null,"recompute":null,"recompute_method":null,"recompute_num_layers":null,"recompute_modules":null,"schedule":null,"layers_per_stage":null,"cp_comm":null,"moe_dispatcher":null,"overlap":null,"offload":null},"memory_headroom_fraction":0.03,"allow_at_risk":false,"num_nodes":{"min":null,"max":null},"allow_idle_gpus":true},"objective":"step_time","targets":{"deadline_h":null,"min_tokens_per_s":null},"top_k":1,"include":[],"time_limit_s":null,"wait_s":10.0,"seed":0},"plans":[{"rank":1,"strategy":{"tp":1,"pp":1,"dp":8,"cp":1,"ep":1,"etp":1,"vpp":1,"zero":2,"zero_shard_size":8,"zero_param_shard_size":8,"grad_sync":"each","sequence_parallel":false,"micro_batch_size":1,"recompute":"none","recompute_method":null,"recompute_num_layers":null,"recompute_modules":null,"recompute_per_stage":null,"schedule":"1f1b","layers_per_stage":[32],"cp_comm":"allgather","moe_dispatcher":"alltoall","overlap":{"grad_reduce":true,"param_gather":true,"tp_comm":false,"p2p":false,"moe_all_to_all":false},"offload":{"optimizer_fraction":0.0,"parameters":false,"activation_layers":0}},"evaluation":{"id":null,"verdict":"fits","reasons":[],"num_gpus_used":8,"num_micro_batches":8,"num_parameters":8030261248,"padded_vocab_size":128256,"step_time_s":3.388365919316894,"step_time_range_s":[3.128255528260406,3.648476310373382],"tokens_per_s_per_gpu":9670.738279237014,"model_tflops_per_gpu":497.75678238189477,"model_tflops_per_gpu_causal":466.60515390377105,"hardware_tflops_per_gpu":497.75678238189477,"mfu":0.5030895314148927,"mfu_bf16":null,"time_breakdown_s":{"gemm":1.930309731849532,"attention":0.49088582216539306,"elementwise":0.5210854949880668,"launch":0.0,"embedding":0.006569241050119331,"head":0.1469766635712736,"loss":0.05642039599045346,"recompute":0.0,"grad_accumulation":0.02602768496420048,"tp_comm":0.0,"cp_comm":0.0,"ep_comm":0.0,"pp_comm":0.0,"pp_bubble":0.0,"dp_comm":0.13778950018452946,"tied_embedding_comm":0.0,"optimizer":0.014972891646778043,"offload":0.0,"jitter":0.05732849290654829},"memory":{"peak_allocated_bytes":64950910976.0,"peak_reserved_bytes":68427684986.87999,"peak_device_bytes":70124197068.79999,"peak_device_range_bytes":[62687649341.439995,77560744796.15999],"capacity_bytes":84932978278.4,"host_bytes_per_node":0.0,"stages":null},"assumed":{"host_link_gb_per_s":63.0,"framework_version":"2.8","software_date":"2025-08","transformer_impl":"local","compile":false,"attention":"flash","attention_kernel":"sdpa","cross_entropy":"unfused","cuda_graphs":false,"expandable_segments":false,"dropout":0.0,"optimizer":"adam","param_dtype":"fp32","main_param_dtype":"none","grad_dtype":"fp32","grad_reduce_dtype":"bf16","optimizer_state_dtype":"fp32"},"provenance":{"calibration":"H100-SXM-80GB reference","terms":{"gemm":"interpolated","attention":"nominal","elementwise":"nominal","launch":"measured","embedding":"nominal","head":"extrapolated","loss":"nominal","recompute":"measured","grad_accumulation":"nominal","tp_comm":"measured","cp_comm":"measured","ep_comm":"measured","pp_comm":"measured","pp_bubble":"measured","dp_comm":"interpolated","tied_embedding_comm":"measured","optimizer":"nominal","offload":"measured","jitter":"nominal"}}},"tie_group":1,"variant_of":null,"folded_under":null,"against_next":null}],"ties":[],"search":{"methods":["exhaustive"],"space":{"tp":[1,2,4,8],"pp":[1,2,4,8],"cp":[1,2,4,8],"dp":[1,2,4,8],"ep":[1],"etp":[1],"micro_batch_size":[1,2,4,8,16,32,64],"sequence_parallel":[false,true],"vpp":[1],"zero":[0,2,3],"zero_shard_size":["all replicas"],"recompute":["none","full"],"recompute_num_layers":[],"layers_per_stage":["even"]},"evaluated":127,"feasible":127,"elapsed_s":0.03302531999997882,"proof":{"optimal":true,"gap":0.0,"lower_bound_s":3.388365919316894}},"rejected":{"at-risk-of-memory":23,"out-of-memory":176,"pipeline-unsupported":552,"zero-with-tensor-parallel":58},"nearest_infeasible":[{"strategy":{"tp":4,"pp":1,"dp":1,"cp":2,"ep":1,"etp":1,"vpp":1,"zero":0,"zero_shard_size":2,"zero_param_shard_size":2,"grad_sync":"last","sequence_parallel":true,"micro_batch_size":16,"recompute":"full","recompute_method":null,"recompute_num_layers":null,"recompute_modules":null,"recompute_per_stage":null,"schedule":"1f1b","layers_per_stage":[32],"cp_comm":"allgather","moe_dispatcher":"alltoall","overlap":{"grad_reduce":true,"param_gather":false,"tp_comm":false,"p2p":false,"moe_all_to_all":false},"offload":{"optimizer_fraction":0.0,"parameters":false,"activation_layers":0}},"reasons":[{"code":"at-risk-of-memory","message":"the fullest stage needs 69.7 GiB (61.6 to 77.7) of 79.1 GiB a GPU, headroom included","hint":"Lower micro_batch_size or recompute more, or test this plan for a few steps."}],"smallest_change":"micro_batch_size 8"},{"strategy":{"tp":2,"pp":1,"dp":2,"cp":2,"ep":1,"etp":1,"vpp":1,"zero":2,"zero_shard_size":4,"zero_param_shard_size":4,"grad_sync":"each","sequence_parallel":false,"micro_batch_size":4,"recompute":"none","recompute_method":null,"recompute_num_layers":null,"recompute_modules":null,"recompute_per_stage":null,"schedule":"1f1b","layers_per_stage":[32],"cp_comm":"allgather","moe_dispatcher":"alltoall","overlap":{"grad_reduce":true,"param_gather":true,"tp_comm":false,"p2p":false,"moe_all_to_all":false},"offload":{"optimizer_fraction":0.0,"parameters":false,"activation_layers":0}},"reasons":[{"code":"at-risk-of-memory","message":"the fullest stage needs 69.9 GiB (61.8 to 78.0) of 79.1 GiB a GPU, headroom included","hint":"Lower micro_batch_size or recompute more, or test this plan for a few steps."}],"smallest_change":"micro_batch_size 2"},{"strategy":{"tp":2,"pp":1,"dp":1,"cp":4,"ep":1,"etp":1,"vpp":1,"zero":2,"zero_shard_size":4,"zero_param_shard_size":4,"grad_sync":"each","sequence_parallel":false,"micro_batch_size":8,"recompute":"none","recompute_method":null,"recompute_num_layers":null,"recompute_modules":null,"recompute_per_stage":null,"schedule":"1f1b","layers_per_stage":[32],"cp_comm":"allgather","moe_dispatcher":"alltoall","overlap":{"grad_reduce":true,"param_gather":true,"tp_comm":false,"p2p":false,"moe_all_to_all":false},"offload":{"optimizer_fraction":0.0,"parameters":false,"activation_layers":0}},"reasons":[{"code":"at-risk-of-memory","message":"the fullest stage needs 69.9 GiB (61.8 to 78.0) of 79.1 GiB a GPU, headroom included","hint":"Lower micro_batch_size or recompute more, or test this plan for a few steps."}],"smallest_change":"micro_batch_size 4"}],"inexpressible_best":null,"warnings":[],"pareto":[],"what_if":[],"request_digest":"c62b7839ac9158998f8431eaab855ee79d283c9bda3967c0e6c1fb71f178cf7b"}', '{"num_plans":1,"step_time_s":3.388365919316894,"tokens_per_s_per_gpu":9670.738279237014,"num_gpus_used":8}');
INSERT INTO public.plans VALUES ('blue', 'plan-98a909cbcad28ba759bf', '2026-11-29 12:14:59.886925+00', 'c62b7839ac9158998f8431eaab855ee79d283c9bda3967c0e6c1fb71f178cf7b', 'c62b7839ac9158998f8431eaab855ee79d283c9bda3967c0e6c1fb71f178cf7b', '{"id":"plan-98a909cbcad28ba759bf","status":"succeeded","created_at":"2026-11-29T12:14:59.886925Z","product_version":"0.1.0","schema_version":1,"request":{"model":{"name":"llama-3.1-8b","num_layers":32,"hidden_size":4096,"num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"intermediate_size":14336,"vocab_size":128256,"gated_mlp":true,"tie_word_embeddings":false,"norm":"rmsnorm","norm_bias":false,"norm_weight":true,"norms_per_layer":2,"qk_norm":"none","position_embedding":"rope","max_position_embeddings":131072,"mlp_bias":false,"head_bias":false,"parallel_block":false,"embedding_norm":false,"final_norm":true,"attention_sinks":false,"mtp_num_layers":0,"attention_bias":false},"cluster":{"name":"1x8 H100-SXM-80GB","gpu":"H100-SXM-80GB","num_nodes":1,"gpus_per_node":8,"nvlink_domain_gpus":8,"intra_node":"nvswitch","pcie":{"gpus_per_switch":2,"gpus_per_socket":4},"nics_per_node":8,"nic_gbit_per_s":400.0,"network":{"fabric":"infiniband","rail_optimized":true,"oversubscription":1.0,"latency_us":4.0},"host_link_gb_per_s":63.0,"reserved_memory_gib":0.0},"training":{"seq_length":4096,"global_batch_size":64,"precision":"bf16","framework":"fsdp","framework_version":"2.8","software_date":"2025-08","transformer_impl":"local","attention":"flash","attention_kernel":"sdpa","cross_entropy":"unfused","fp8_recipe":"tensorwise","optimizer":"adam","param_dtype":"fp32","main_param_dtype":"none","grad_dtype":"fp32","grad_reduce_dtype":"bf16","optimizer_state_dtype":"fp32","compile":false,"cuda_graphs":false,"expandable_segments":false,"dropout":0.0},"constraints":{"fixed":{"tp":null,"pp":null,"dp":null,"cp":null,"ep":null,"etp":null,"vpp":null,"zero":null,"zero_shard_size":null,"zero_param_shard_size":null,"grad_sync":null,"sequence_parallel":null,"micro_batch_size":null,"recompute":null,"recompute_method":null,"recompute_num_layers":null,"recompute_modules":null,"recompute_per_stage":null,"schedule":null,"layers_per_stage":null,"pool_per_stage":null,"cp_comm":null,"moe_dispatcher":null,"overlap":null,"offload":null},"allowed":{"tp":null,"pp":null,"dp":null,"cp":null,"ep":null,"etp":null,"vpp":null,"zero":null,"zero_shard_size":null,"zero_param_shard_size":null,"grad_sync":null,"sequence_parallel":null,"micro_batch_size":null,"recompute":null,"recompute_method":null,"recompute_num_layers":null,"recompute_modules":null,"schedule":null,"layers_per_stage":null,"cp_comm":null,"moe_dispatcher":null,"overlap":null,"offload":null},"memory_headroom_fraction":0.03,"allow_at_risk":false,"num_nodes":{"min":null,"max":null},"allow_idle_gpus":true},"objective":"step_time","targets":{"deadline_h":null,"min_tokens_per_s":null},"top_k":1,"include":[],"time_limit_s":null,"wait_s":10.0,"seed":0},"plans":[{"rank":1,"strategy":{"tp":1,"pp":1,"dp":8,"cp":1,"ep":1,"etp":1,"vpp":1,"zero":2,"zero_shard_size":8,"zero_param_shard_size":8,"grad_sync":"each","sequence_parallel":false,"micro_batch_size":1,"recompute":"none","recompute_method":null,"recompute_num_layers":null,"recompute_modules":null,"recompute_per_stage":null,"schedule":"1f1b","layers_per_stage":[32],"cp_comm":"allgather","moe_dispatcher":"alltoall","overlap":{"grad_reduce":true,"param_gather":true,"tp_comm":false,"p2p":false,"moe_all_to_all":false},"offload":{"optimizer_fraction":0.0,"parameters":false,"activation_layers":0}},"evaluation":{"id":null,"verdict":"fits","reasons":[],"num_gpus_used":8,"num_micro_batches":8,"num_parameters":8030261248,"padded_vocab_size":128256,"step_time_s":3.388365919316894,"step_time_range_s":[3.128255528260406,3.648476310373382],"tokens_per_s_per_gpu":9670.738279237014,"model_tflops_per_gpu":497.75678238189477,"model_tflops_per_gpu_causal":466.60515390377105,"hardware_tflops_per_gpu":497.75678238189477,"mfu":0.5030895314148927,"mfu_bf16":null,"time_breakdown_s":{"gemm":1.930309731849532,"attention":0.49088582216539306,"elementwise":0.5210854949880668,"launch":0.0,"embedding":0.006569241050119331,"head":0.1469766635712736,"loss":0.05642039599045346,"recompute":0.0,"grad_accumulation":0.02602768496420048,"tp_comm":0.0,"cp_comm":0.0,"ep_comm":0.0,"pp_comm":0.0,"pp_bubble":0.0,"dp_comm":0.13778950018452946,"tied_embedding_comm":0.0,"optimizer":0.014972891646778043,"offload":0.0,"jitter":0.05732849290654829},"memory":{"peak_allocated_bytes":64950910976.0,"peak_reserved_bytes":68427684986.87999,"peak_device_bytes":70124197068.79999,"peak_device_range_bytes":[62687649341.439995,77560744796.15999],"capacity_bytes":84932978278.4,"host_bytes_per_node":0.0,"stages":null},"assumed":{"host_link_gb_per_s":63.0,"framework_version":"2.8","software_date":"2025-08","transformer_impl":"local","compile":false,"attention":"flash","attention_kernel":"sdpa","cross_entropy":"unfused","cuda_graphs":false,"expandable_segments":false,"dropout":0.0,"optimizer":"adam","param_dtype":"fp32","main_param_dtype":"none","grad_dtype":"fp32","grad_reduce_dtype":"bf16","optimizer_state_dtype":"fp32"},"provenance":{"calibration":"H100-SXM-80GB reference","terms":{"gemm":"interpolated","attention":"nominal","elementwise":"nominal","launch":"measured","embedding":"nominal","head":"extrapolated","loss":"nominal","recompute":"measured","grad_accumulation":"nominal","tp_comm":"measured","cp_comm":"measured","ep_comm":"measured","pp_comm":"measured","pp_bubble":"measured","dp_comm":"interpolated","tied_embedding_comm":"measured","optimizer":"nominal","offload":"measured","jitter":"nominal"}}},"tie_group":1,"variant_of":null,"folded_under":null,"against_next":null}],"ties":[],"search":{"methods":["exhaustive"],"space":{"tp":[1,2,4,8],"pp":[1,2,4,8],"cp":[1,2,4,8],"dp":[1,2,4,8],"ep":[1],"etp":[1],"micro_batch_size":[1,2,4,8,16,32,64],"sequence_parallel":[false,true],"vpp":[1],"zero":[0,2,3],"zero_shard_size":["all replicas"],"recompute":["none","full"],"recompute_num_layers":[],"layers_per_stage":["even"]},"evaluated":127,"feasible":127,"elapsed_s":0.019500945999993746,"proof":{"optimal":true,"gap":0.0,"lower_bound_s":3.388365919316894}},"rejected":{"at-risk-of-memory":23,"out-of-memory":176,"pipeline-unsupported":552,"zero-with-tensor-parallel":58},"nearest_infeasible":[{"strategy":{"tp":4,"pp":1,"dp":1,"cp":2,"ep":1,"etp":1,"vpp":1,"zero":0,"zero_shard_size":2,"zero_param_shard_size":2,"grad_sync":"last","sequence_parallel":true,"micro_batch_size":16,"recompute":"full","recompute_method":null,"recompute_num_layers":null,"recompute_modules":null,"recompute_per_stage":null,"schedule":"1f1b","layers_per_stage":[32],"cp_comm":"allgather","moe_dispatcher":"alltoall","overlap":{"grad_reduce":true,"param_gather":false,"tp_comm":false,"p2p":false,"moe_all_to_all":false},"offload":{"optimizer_fraction":0.0,"parameters":false,"activation_layers":0}},"reasons":[{"code":"at-risk-of-memory","message":"the fullest stage needs 69.7 GiB (61.6 to 77.7) of 79.1 GiB a GPU, headroom included","hint":"Lower micro_batch_size or recompute more, or test this plan for a few steps."}],"smallest_change":"micro_batch_size 8"},{"strategy":{"tp":2,"pp":1,"dp":2,"cp":2,"ep":1,"etp":1,"vpp":1,"zero":2,"zero_shard_size":4,"zero_param_shard_size":4,"grad_sync":"each","sequence_parallel":false,"micro_batch_size":4,"recompute":"none","recompute_method":null,"recompute_num_layers":null,"recompute_modules":null,"recompute_per_stage":null,"schedule":"1f1b","layers_per_stage":[32],"cp_comm":"allgather","moe_dispatcher":"alltoall","overlap":{"grad_reduce":true,"param_gather":true,"tp_comm":false,"p2p":false,"moe_all_to_all":false},"offload":{"optimizer_fraction":0.0,"parameters":false,"activation_layers":0}},"reasons":[{"code":"at-risk-of-memory","message":"the fullest stage needs 69.9 GiB (61.8 to 78.0) of 79.1 GiB a GPU, headroom included","hint":"Lower micro_batch_size or recompute more, or test this plan for a few steps."}],"smallest_change":"micro_batch_size 2"},{"strategy":{"tp":2,"pp":1,"dp":1,"cp":4,"ep":1,"etp":1,"vpp":1,"zero":2,"zero_shard_size":4,"zero_param_shard_size":4,"grad_sync":"each","sequence_parallel":false,"micro_batch_size":8,"recompute":"none","recompute_method":null,"recompute_num_layers":null,"recompute_modules":null,"recompute_per_stage":null,"schedule":"1f1b","layers_per_stage":[32],"cp_comm":"allgather","moe_dispatcher":"alltoall","overlap":{"grad_reduce":true,"param_gather":true,"tp_comm":false,"p2p":false,"moe_all_to_all":false},"offload":{"optimizer_fraction":0.0,"parameters":false,"activation_layers":0}},"reasons":[{"code":"at-risk-of-memory","message":"the fullest stage needs 69.9 GiB (61.8 to 78.0) of 79.1 GiB a GPU, headroom included","hint":"Lower micro_batch_size or recompute more, or test this plan for a few steps."}],"smallest_change":"micro_batch_size 4"}],"inexpressible_best":null,"warnings":[],"pareto":[],"what_if":[],"request_digest":"c62b7839ac9158998f8431eaab855ee79d283c9bda3967c0e6c1fb71f178cf7b"}', '{"num_plans":1,"step_time_s":3.388365919316894,"tokens_per_s_per_gpu":9670.738279237014,"num_gpus_used":8}');
INSERT INTO public.plans VALUES ('blue', 'plan-419e60d243a6b724d1fd', '2026-11-29 12:14:59.964008+00', 'b05c1754c94d9aeb728b599c5156f7aa6ce9ee6f192eaacc7a36d01f8d561edd', 'b05c1754c94d9aeb728b599c5156f7aa6ce9ee6f192eaacc7a36d01f8d561edd', NULL, NULL);
INSERT INTO public.plans VALUES ('blue', 'plan-5eba63ff5bc6bd1f0aed', '2026-11-29 12:14:59.980948+00', '225f57fed49af8d74d09cefcd4a06476fc5d253da180c5fe8551a6698521df35', '225f57fed49af8d74d09cefcd4a06476fc5d253da180c5fe8551a6698521df35', NULL, NULL);
INSERT INTO public.plans VALUES ('blue', 'plan-1e5225c96f406b662b21', '2026-11-29 12:14:59.951851+00', '445a97950ec38151902b9ea69a76326e146fb48ee8a7e7b7d37be9b049522838', NULL, NULL, NULL);
INSERT INTO public.plans VALUES ('blue', 'plan-5aa3a1f95f05ab73c584', '2026-11-29 12:14:59.93732+00', '0ffce0b68a2c4fb269d5715328e33c92c47c38e6c98c8bd969a442eea6adf5b3', '0ffce0b68a2c4fb269d5715328e33c92c47c38e6c98c8bd969a442eea6adf5b3', '{"id":"plan-5aa3a1f95f05ab73c584","status":"succeeded","created_at":"2026-11-29T12:14:59.937320Z","product_version":"0.1.0","schema_version":1,"request":{"model":{"name":"llama-3.1-8b","num_layers":32,"hidden_size":4096,"num_attention_heads":32,"num_key_value_heads":8,"head_dim":128,"intermediate_size":14336,"vocab_size":128256,"gated_mlp":true,"tie_word_embeddings":false,"norm":"rmsnorm","norm_bias":false,"norm_weight":true,"norms_per_layer":2,"qk_norm":"none","position_embedding":"rope","max_position_embeddings":131072,"mlp_bias":false,"head_bias":false,"parallel_block":false,"embedding_norm":false,"final_norm":true,"attention_sinks":false,"mtp_num_layers":0,"attention_bias":false},"cluster":{"name":"1x8 H100-SXM-80GB","gpu":"H100-SXM-80GB","num_nodes":1,"gpus_per_node":8,"nvlink_domain_gpus":8,"intra_node":"nvswitch","pcie":{"gpus_per_switch":2,"gpus_per_socket":4},"nics_per_node":8,"nic_gbit_per_s":400.0,"network":{"fabric":"infiniband","rail_optimized":true,"oversubscription":1.0,"latency_us":4.0},"host_link_gb_per_s":63.0,"reserved_memory_gib":0.0},"training":{"seq_length":4096,"global_batch_size":128,"precision":"bf16","framework":"fsdp","framework_version":"2.8","software_date":"2025-08","transformer_impl":"local","attention":"flash","attention_kernel":"sdpa","cross_entropy":"unfused","fp8_recipe":"tensorwise","optimizer":"adam","param_dtype":"fp32","main_param_dtype":"none","grad_dtype":"fp32","grad_reduce_dtype":"bf16","optimizer_state_dtype":"fp32","compile":false,"cuda_graphs":false,"expandable_segments":false,"dropout":0.0},"constraints":{"fixed":{"tp":null,"pp":null,"dp":null,"cp":null,"ep":null,"etp":null,"vpp":null,"zero":null,"zero_shard_size":null,"zero_param_shard_size":null,"grad_sync":null,"sequence_parallel":null,"micro_batch_size":null,"recompute":null,"recompute_method":null,"recompute_num_layers":null,"recompute_modules":null,"recompute_per_stage":null,"schedule":null,"layers_per_stage":null,"pool_per_stage":null,"cp_comm":null,"moe_dispatcher":null,"overlap":null,"offload":null},"allowed":{"tp":null,"pp":null,"dp":null,"cp":null,"ep":null,"etp":null,"vpp":null,"zero":null,"zero_shard_size":null,"zero_param_shard_size":null,"grad_sync":null,"sequence_parallel":null,"micro_batch_size":null,"recompute":null,"recompute_method":null,"recompute_num_layers":null,"recompute_modules":null,"schedule":null,"layers_per_stage":null,"cp_comm":null,"moe_dispatcher":null,"overlap":null,"offload":null},"memory_headroom_fraction":0.03,"allow_at_risk":false,"num_nodes":{"min":null,"max":null},"allow_idle_gpus":true},"objective":"step_time","targets":{"deadline_h":null,"min_tokens_per_s":null},"top_k":1,"include":[],"time_limit_s":null,"wait_s":0.0,"seed":0},"plans":[{"rank":1,"strategy":{"tp":1,"pp":1,"dp":8,"cp":1,"ep":1,"etp":1,"vpp":1,"zero":2,"zero_shard_size":8,"zero_param_shard_size":8,"grad_sync":"each","sequence_parallel":false,"micro_batch_size":1,"recompute":"none","recompute_method":null,"recompute_num_layers":null,"recompute_modules":null,"recompute_per_stage":null,"schedule":"1f1b","layers_per_stage":[32],"cp_comm":"allgather","moe_dispatcher":"alltoall","overlap":{"grad_reduce":true,"param_gather":true,"tp_comm":false,"p2p":false,"moe_all_to_all":false},"offload":{"optimizer_fraction":0.0,"parameters":false,"activation_layers":0}},"evaluation":{"id":null,"verdict":"fits","reasons":[],"num_gpus_used":8,"num_micro_batches":16,"num_parameters":8030261248,"padded_vocab_size":128256,"step_time_s":6.761501257503921,"step_time_range_s":[6.241827065975739,7.281175449032103],"tokens_per_s_per_gpu":9692.522045643056,"model_tflops_per_gpu":498.8780015857802,"model_tflops_per_gpu_causal":467.65620268443325,"hardware_tflops_per_gpu":498.8780015857802,"mfu":0.5042227628722258,"mfu_bf16":null,"time_breakdown_s":{"gemm":3.860619463699064,"attention":0.9817716443307861,"elementwise":1.0421709899761336,"launch":0.0,"embedding":0.013138482100238663,"head":0.2939533271425472,"loss":0.11284079198090692,"recompute":0.0,"grad_accumulation":0.05205536992840096,"tp_comm":0.0,"cp_comm":0.0,"ep_comm":0.0,"pp_comm":0.0,"pp_bubble":0.0,"dp_comm":0.2755790003690589,"tied_embedding_comm":0.0,"optimizer":0.014972891646778043,"offload":0.0,"jitter":0.11439929633000727},"memory":{"peak_allocated_bytes":64950910976.0,"peak_reserved_bytes":68427684986.87999,"peak_device_bytes":70124197068.79999,"peak_device_range_bytes":[62687649341.439995,77560744796.15999],"capacity_bytes":84932978278.4,"host_bytes_per_node":0.0,"stages":null},"assumed":{"host_link_gb_per_s":63.0,"framework_version":"2.8","software_date":"2025-08","transformer_impl":"local","compile":false,"attention":"flash","attention_kernel":"sdpa","cross_entropy":"unfused","cuda_graphs":false,"expandable_segments":false,"dropout":0.0,"optimizer":"adam","param_dtype":"fp32","main_param_dtype":"none","grad_dtype":"fp32","grad_reduce_dtype":"bf16","optimizer_state_dtype":"fp32"},"provenance":{"calibration":"H100-SXM-80GB reference","terms":{"gemm":"interpolated","attention":"nominal","elementwise":"nominal","launch":"measured","embedding":"nominal","head":"extrapolated","loss":"nominal","recompute":"measured","grad_accumulation":"nominal","tp_comm":"measured","cp_comm":"measured","ep_comm":"measured","pp_comm":"measured","pp_bubble":"measured","dp_comm":"interpolated","tied_embedding_comm":"measured","optimizer":"nominal","offload":"measured","jitter":"nominal"}}},"tie_group":1,"variant_of":null,"folded_under":null,"against_next":null}],"ties":[],"search":{"methods":["exhaustive"],"space":{"tp":[1,2,4,8],"pp":[1,2,4,8],"cp":[1,2,4,8],"dp":[1,2,4,8],"ep":[1],"etp":[1],"micro_batch_size":[1,2,4,8,16,32,64,128],"sequence_parallel":[false,true],"vpp":[1],"zero":[0,2,3],"zero_shard_size":["all replicas"],"recompute":["none","full"],"recompute_num_layers":[],"layers_per_stage":["even"]},"evaluated":107,"feasible":107,"elapsed_s":0.04190377399999079,"proof":{"optimal":true,"gap":0.0,"lower_bound_s":6.761501257503921}},"rejected":{"at-risk-of-memory":14,"out-of-memory":211,"pipeline-unsupported":636,"zero-with-tensor-parallel":52},"nearest_infeasible":[{"strategy":{"tp":4,"pp":1,"dp":1,"cp":2,"ep":1,"etp":1,"vpp":1,"zero":0,"zero_shard_size":2,"zero_param_shard_size":2,"grad_sync":"last","sequence_parallel":true,"micro_batch_size":16,"recompute":"full","recompute_method":null,"recompute_num_layers":null,"recompute_modules":null,"recompute_per_stage":null,"schedule":"1f1b","layers_per_stage":[32],"cp_comm":"allgather","moe_dispatcher":"alltoall","overlap":{"grad_reduce":true,"param_gather":false,"tp_comm":false,"p2p":false,"moe_all_to_all":false},"offload":{"optimizer_fraction":0.0,"parameters":false,"activation_layers":0}},"reasons":[{"code":"at-risk-of-memory","message":"the fullest stage needs 69.7 GiB (61.6 to 77.7) of 79.1 GiB a GPU, headroom included","hint":"Lower micro_batch_size or recompute more, or test this plan for a few steps."}],"smallest_change":"micro_batch_size 8"},{"strategy":{"tp":2,"pp":1,"dp":2,"cp":2,"ep":1,"etp":1,"vpp":1,"zero":2,"zero_shard_size":4,"zero_param_shard_size":4,"grad_sync":"each","sequence_parallel":false,"micro_batch_size":4,"recompute":"none","recompute_method":null,"recompute_num_layers":null,"recompute_modules":null,"recompute_per_stage":null,"schedule":"1f1b","layers_per_stage":[32],"cp_comm":"allgather","moe_dispatcher":"alltoall","overlap":{"grad_reduce":true,"param_gather":true,"tp_comm":false,"p2p":false,"moe_all_to_all":false},"offload":{"optimizer_fraction":0.0,"parameters":false,"activation_layers":0}},"reasons":[{"code":"at-risk-of-memory","message":"the fullest stage needs 69.9 GiB (61.8 to 78.0) of 79.1 GiB a GPU, headroom included","hint":"Lower micro_batch_size or recompute more, or test this plan for a few steps."}],"smallest_change":"micro_batch_size 2"},{"strategy":{"tp":2,"pp":1,"dp":1,"cp":4,"ep":1,"etp":1,"vpp":1,"zero":2,"zero_shard_size":4,"zero_param_shard_size":4,"grad_sync":"each","sequence_parallel":false,"micro_batch_size":8,"recompute":"none","recompute_method":null,"recompute_num_layers":null,"recompute_modules":null,"recompute_per_stage":null,"schedule":"1f1b","layers_per_stage":[32],"cp_comm":"allgather","moe_dispatcher":"alltoall","overlap":{"grad_reduce":true,"param_gather":true,"tp_comm":false,"p2p":false,"moe_all_to_all":false},"offload":{"optimizer_fraction":0.0,"parameters":false,"activation_layers":0}},"reasons":[{"code":"at-risk-of-memory","message":"the fullest stage needs 69.9 GiB (61.8 to 78.0) of 79.1 GiB a GPU, headroom included","hint":"Lower micro_batch_size or recompute more, or test this plan for a few steps."}],"smallest_change":"micro_batch_size 4"}],"inexpressible_best":null,"warnings":[],"pareto":[],"what_if":[],"request_digest":"0ffce0b68a2c4fb269d5715328e33c92c47c38e6c98c8bd969a442eea6adf5b3"}', '{"num_plans":1,"step_time_s":6.761501257503921,"tokens_per_s_per_gpu":9692.522045643056,"num_gpus_used":8}');


--
-- Data for Name: ranked_plans; Type: TABLE DATA; Schema: public; Owner: -
--

INSERT INTO public.ranked_plans VALUES ('red', 'plan-200e744e2c3e96592982', 1, '{"rank":1,"strategy":{"tp":1,"pp":1,"dp":8,"cp":1,"ep":1,"etp":1,"vpp":1,"zero":2,"zero_shard_size":8,"zero_param_shard_size":8,"grad_sync":"each","sequence_parallel":false,"micro_batch_size":1,"recompute":"none","recompute_method":null,"recompute_num_layers":null,"recompute_modules":null,"recompute_per_stage":null,"schedule":"1f1b","layers_per_stage":[32],"cp_comm":"allgather","moe_dispatcher":"alltoall","overlap":{"grad_reduce":true,"param_gather":true,"tp_comm":false,"p2p":false,"moe_all_to_all":false},"offload":{"optimizer_fraction":0.0,"parameters":false,"activation_layers":0}},"evaluation":{"id":null,"verdict":"fits","reasons":[],"num_gpus_used":8,"num_micro_batches":8,"num_parameters":8030261248,"padded_vocab_size":128256,"step_time_s":3.388365919316894,"step_time_range_s":[3.128255528260406,3.648476310373382],"tokens_per_s_per_gpu":9670.738279237014,"model_tflops_per_gpu":497.75678238189477,"model_tflops_per_gpu_causal":466.60515390377105,"hardware_tflops_per_gpu":497.75678238189477,"mfu":0.5030895314148927,"mfu_bf16":null,"time_breakdown_s":{"gemm":1.930309731849532,"attention":0.49088582216539306,"elementwise":0.5210854949880668,"launch":0.0,"embedding":0.006569241050119331,"head":0.1469766635712736,"loss":0.05642039599045346,"recompute":0.0,"grad_accumulation":0.02602768496420048,"tp_comm":0.0,"cp_comm":0.0,"ep_comm":0.0,"pp_comm":0.0,"pp_bubble":0.0,"dp_comm":0.13778950018452946,"tied_embedding_comm":0.0,"optimizer":0.014972891646778043,"offload":0.0,"jitter":0.05732849290654829},"memory":{"peak_allocated_bytes":64950910976.0,"peak_reserved_bytes":68427684986.87999,"peak_device_bytes":70124197068.79999,"peak_device_range_bytes":[62687649341.439995,77560744796.15999],"capacity_bytes":84932978278.4,"host_bytes_per_node":0.0,"stages":[{"stage":0,"layers":32,"peak_moment":"loss","peak_allocated_bytes":64950910976.0,"breakdown_bytes":{"parameters":4015130624.0,"main_parameters":0.0,"gradients":4015130624.0,"optimizer_states":8030261248.0,"activations":26458718208.0,"layer_transient":0.0,"logits_and_loss":6304038912.0,"parameter_gather":16060522496.0,"gradient_reduce":0.0,"comm_workspace":0.0,"optimizer_transient":0.0,"library_workspace":67108864.0}}]},"assumed":{"host_link_gb_per_s":63.0,"framework_version":"2.8","software_date":"2025-08","transformer_impl":"local","compile":false,"attention":"flash","attention_kernel":"sdpa","cross_entropy":"unfused","cuda_graphs":false,"expandable_segments":false,"dropout":0.0,"optimizer":"adam","param_dtype":"fp32","main_param_dtype":"none","grad_dtype":"fp32","grad_reduce_dtype":"bf16","optimizer_state_dtype":"fp32"},"provenance":{"calibration":"H100-SXM-80GB reference","terms":{"gemm":"interpolated","attention":"nominal","elementwise":"nominal","launch":"measured","embedding":"nominal","head":"extrapolated","loss":"nominal","recompute":"measured","grad_accumulation":"nominal","tp_comm":"measured","cp_comm":"measured","ep_comm":"measured","pp_comm":"measured","pp_bubble":"measured","dp_comm":"interpolated","tied_embedding_comm":"measured","optimizer":"nominal","offload":"measured","jitter":"nominal"}}},"tie_group":1,"variant_of":null,"folded_under":null,"against_next":null}');
INSERT INTO public.ranked_plans VALUES ('blue', 'plan-98a909cbcad28ba759bf', 1, '{"rank":1,"strategy":{"tp":1,"pp":1,"dp":8,"cp":1,"ep":1,"etp":1,"vpp":1,"zero":2,"zero_shard_size":8,"zero_param_shard_size":8,"grad_sync":"each","sequence_parallel":false,"micro_batch_size":1,"recompute":"none","recompute_method":null,"recompute_num_layers":null,"recompute_modules":null,"recompute_per_stage":null,"schedule":"1f1b","layers_per_stage":[32],"cp_comm":"allgather","moe_dispatcher":"alltoall","overlap":{"grad_reduce":true,"param_gather":true,"tp_comm":false,"p2p":false,"moe_all_to_all":false},"offload":{"optimizer_fraction":0.0,"parameters":false,"activation_layers":0}},"evaluation":{"id":null,"verdict":"fits","reasons":[],"num_gpus_used":8,"num_micro_batches":8,"num_parameters":8030261248,"padded_vocab_size":128256,"step_time_s":3.388365919316894,"step_time_range_s":[3.128255528260406,3.648476310373382],"tokens_per_s_per_gpu":9670.738279237014,"model_tflops_per_gpu":497.75678238189477,"model_tflops_per_gpu_causal":466.60515390377105,"hardware_tflops_per_gpu":497.75678238189477,"mfu":0.5030895314148927,"mfu_bf16":null,"time_breakdown_s":{"gemm":1.930309731849532,"attention":0.49088582216539306,"elementwise":0.5210854949880668,"launch":0.0,"embedding":0.006569241050119331,"head":0.1469766635712736,"loss":0.05642039599045346,"recompute":0.0,"grad_accumulation":0.02602768496420048,"tp_comm":0.0,"cp_comm":0.0,"ep_comm":0.0,"pp_comm":0.0,"pp_bubble":0.0,"dp_comm":0.13778950018452946,"tied_embedding_comm":0.0,"optimizer":0.014972891646778043,"offload":0.0,"jitter":0.05732849290654829},"memory":{"peak_allocated_bytes":64950910976.0,"peak_reserved_bytes":68427684986.87999,"peak_device_bytes":70124197068.79999,"peak_device_range_bytes":[62687649341.439995,77560744796.15999],"capacity_bytes":84932978278.4,"host_bytes_per_node":0.0,"stages":[{"stage":0,"layers":32,"peak_moment":"loss","peak_allocated_bytes":64950910976.0,"breakdown_bytes":{"parameters":4015130624.0,"main_parameters":0.0,"gradients":4015130624.0,"optimizer_states":8030261248.0,"activations":26458718208.0,"layer_transient":0.0,"logits_and_loss":6304038912.0,"parameter_gather":16060522496.0,"gradient_reduce":0.0,"comm_workspace":0.0,"optimizer_transient":0.0,"library_workspace":67108864.0}}]},"assumed":{"host_link_gb_per_s":63.0,"framework_version":"2.8","software_date":"2025-08","transformer_impl":"local","compile":false,"attention":"flash","attention_kernel":"sdpa","cross_entropy":"unfused","cuda_graphs":false,"expandable_segments":false,"dropout":0.0,"optimizer":"adam","param_dtype":"fp32","main_param_dtype":"none","grad_dtype":"fp32","grad_reduce_dtype":"bf16","optimizer_state_dtype":"fp32"},"provenance":{"calibration":"H100-SXM-80GB reference","terms":{"gemm":"interpolated","attention":"nominal","elementwise":"nominal","launch":"measured","embedding":"nominal","head":"extrapolated","loss":"nominal","recompute":"measured","grad_accumulation":"nominal","tp_comm":"measured","cp_comm":"measured","ep_comm":"measured","pp_comm":"measured","pp_bubble":"measured","dp_comm":"interpolated","tied_embedding_comm":"measured","optimizer":"nominal","offload":"measured","jitter":"nominal"}}},"tie_group":1,"variant_of":null,"folded_under":null,"against_next":null}');
INSERT INTO public.ranked_plans VALUES ('blue', 'plan-5aa3a1f95f05ab73c584', 1, '{"rank":1,"strategy":{"tp":1,"pp":1,"dp":8,"cp":1,"ep":1,"etp":1,"vpp":1,"zero":2,"zero_shard_size":8,"zero_param_shard_size":8,"grad_sync":"each","sequence_parallel":false,"micro_batch_size":1,"recompute":"none","recompute_method":null,"recompute_num_layers":null,"recompute_modules":null,"recompute_per_stage":null,"schedule":"1f1b","layers_per_stage":[32],"cp_comm":"allgather","moe_dispatcher":"alltoall","overlap":{"grad_reduce":true,"param_gather":true,"tp_comm":false,"p2p":false,"moe_all_to_all":false},"offload":{"optimizer_fraction":0.0,"parameters":false,"activation_layers":0}},"evaluation":{"id":null,"verdict":"fits","reasons":[],"num_gpus_used":8,"num_micro_batches":16,"num_parameters":8030261248,"padded_vocab_size":128256,"step_time_s":6.761501257503921,"step_time_range_s":[6.241827065975739,7.281175449032103],"tokens_per_s_per_gpu":9692.522045643056,"model_tflops_per_gpu":498.8780015857802,"model_tflops_per_gpu_causal":467.65620268443325,"hardware_tflops_per_gpu":498.8780015857802,"mfu":0.5042227628722258,"mfu_bf16":null,"time_breakdown_s":{"gemm":3.860619463699064,"attention":0.9817716443307861,"elementwise":1.0421709899761336,"launch":0.0,"embedding":0.013138482100238663,"head":0.2939533271425472,"loss":0.11284079198090692,"recompute":0.0,"grad_accumulation":0.05205536992840096,"tp_comm":0.0,"cp_comm":0.0,"ep_comm":0.0,"pp_comm":0.0,"pp_bubble":0.0,"dp_comm":0.2755790003690589,"tied_embedding_comm":0.0,"optimizer":0.014972891646778043,"offload":0.0,"jitter":0.11439929633000727},"memory":{"peak_allocated_bytes":64950910976.0,"peak_reserved_bytes":68427684986.87999,"peak_device_bytes":70124197068.79999,"peak_device_range_bytes":[62687649341.439995,77560744796.15999],"capacity_bytes":84932978278.4,"host_bytes_per_node":0.0,"stages":[{"stage":0,"layers":32,"peak_moment":"loss","peak_allocated_bytes":64950910976.0,"breakdown_bytes":{"parameters":4015130624.0,"main_parameters":0.0,"gradients":4015130624.0,"optimizer_states":8030261248.0,"activations":26458718208.0,"layer_transient":0.0,"logits_and_loss":6304038912.0,"parameter_gather":16060522496.0,"gradient_reduce":0.0,"comm_workspace":0.0,"optimizer_transient":0.0,"library_workspace":67108864.0}}]},"assumed":{"host_link_gb_per_s":63.0,"framework_version":"2.8","software_date":"2025-08","transformer_impl":"local","compile":false,"attention":"flash","attention_kernel":"sdpa","cross_entropy":"unfused","cuda_graphs":false,"expandable_segments":false,"dropout":0.0,"optimizer":"adam","param_dtype":"fp32","main_param_dtype":"none","grad_dtype":"fp32","grad_reduce_dtype":"bf16","optimizer_state_dtype":"fp32"},"provenance":{"calibration":"H100-SXM-80GB reference","terms":{"gemm":"interpolated","attention":"nominal","elementwise":"nominal","launch":"measured","embedding":"nominal","head":"extrapolated","loss":"nominal","recompute":"measured","grad_accumulation":"nominal","tp_comm":"measured","cp_comm":"measured","ep_comm":"measured","pp_comm":"measured","pp_bubble":"measured","dp_comm":"interpolated","tied_embedding_comm":"measured","optimizer":"nominal","offload":"measured","jitter":"nominal"}}},"tie_group":1,"variant_of":null,"folded_under":null,"against_next":null}');


--
-- Name: meshwright_version meshwright_version_pkc; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.meshwright_version
    ADD CONSTRAINT meshwright_version_pkc PRIMARY KEY (version_num);


--
-- Name: calibrations pk_calibrations; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.calibrations
    ADD CONSTRAINT pk_calibrations PRIMARY KEY (tenant, id);


--
-- Name: idempotency_keys pk_idempotency_keys; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.idempotency_keys
    ADD CONSTRAINT pk_idempotency_keys PRIMARY KEY (tenant, key);


--
-- Name: job_events pk_job_events; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.job_events
    ADD CONSTRAINT pk_job_events PRIMARY KEY (tenant, job_id, seq);


--
-- Name: jobs pk_jobs; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.jobs
    ADD CONSTRAINT pk_jobs PRIMARY KEY (tenant, id);


--
-- Name: keys pk_keys; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.keys
    ADD CONSTRAINT pk_keys PRIMARY KEY (tenant, id);


--
-- Name: observations pk_observations; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.observations
    ADD CONSTRAINT pk_observations PRIMARY KEY (tenant, id);


--
-- Name: plans pk_plans; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.plans
    ADD CONSTRAINT pk_plans PRIMARY KEY (tenant, id);


--
-- Name: ranked_plans pk_ranked_plans; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.ranked_plans
    ADD CONSTRAINT pk_ranked_plans PRIMARY KEY (tenant, plan_id, rank);


--
-- Name: keys uq_keys_secret_sha256; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.keys
    ADD CONSTRAINT uq_keys_secret_sha256 UNIQUE (secret_sha256);


--
-- Name: plans uq_plans_tenant_live_digest; Type: CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.plans
    ADD CONSTRAINT uq_plans_tenant_live_digest UNIQUE (tenant, live_digest);


--
-- Name: ix_calibrations_tenant_gpu_gpus_per_node_created_at; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_calibrations_tenant_gpu_gpus_per_node_created_at ON public.calibrations USING btree (tenant, gpu, gpus_per_node, created_at);


--
-- Name: ix_jobs_status_created_at; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_jobs_status_created_at ON public.jobs USING btree (status, created_at);


--
-- Name: ix_observations_tenant_created_at; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_observations_tenant_created_at ON public.observations USING btree (tenant, created_at);


--
-- Name: ix_plans_tenant_created_at_id; Type: INDEX; Schema: public; Owner: -
--

CREATE INDEX ix_plans_tenant_created_at_id ON public.plans USING btree (tenant, created_at, id);


--
-- Name: idempotency_keys fk_idempotency_keys_tenant_plan_id; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.idempotency_keys
    ADD CONSTRAINT fk_idempotency_keys_tenant_plan_id FOREIGN KEY (tenant, plan_id) REFERENCES public.plans(tenant, id) ON DELETE CASCADE;


--
-- Name: job_events fk_job_events_tenant_job_id; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.job_events
    ADD CONSTRAINT fk_job_events_tenant_job_id FOREIGN KEY (tenant, job_id) REFERENCES public.jobs(tenant, id) ON DELETE CASCADE;


--
-- Name: plans fk_plans_tenant_id; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.plans
    ADD CONSTRAINT fk_plans_tenant_id FOREIGN KEY (tenant, id) REFERENCES public.jobs(tenant, id) ON DELETE CASCADE;


--
-- Name: ranked_plans fk_ranked_plans_tenant_plan_id; Type: FK CONSTRAINT; Schema: public; Owner: -
--

ALTER TABLE ONLY public.ranked_plans
    ADD CONSTRAINT fk_ranked_plans_tenant_plan_id FOREIGN KEY (tenant, plan_id) REFERENCES public.plans(tenant, id) ON DELETE CASCADE;


--
-- PostgreSQL database dump complete
--


