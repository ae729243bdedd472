# The whole: who may do what, what calls whom, what is encrypted. Breaking one of these rules fails here, before anything is deployed.

mock_provider "aws" {
  mock_data "aws_caller_identity" {
    defaults = { account_id = "123456789012" }
  }
  mock_data "aws_partition" {
    defaults = { partition = "aws" }
  }
  mock_data "aws_region" {
    defaults = { name = "eu-central-1" }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/r" }
  }
  mock_resource "aws_cloudwatch_log_group" {
    defaults = { arn = "arn:aws:logs:eu-central-1:123456789012:log-group:l" }
  }
  mock_resource "aws_lambda_function" {
    defaults = { arn = "arn:aws:lambda:eu-central-1:123456789012:function:f" }
  }
  mock_resource "aws_sfn_state_machine" {
    defaults = { arn = "arn:aws:states:eu-central-1:123456789012:stateMachine:timelake-backfill" }
  }
  mock_resource "aws_cloudwatch_event_rule" {
    defaults = { arn = "arn:aws:events:eu-central-1:123456789012:rule/r" }
  }
  mock_resource "aws_dynamodb_table" {
    defaults = {
      arn        = "arn:aws:dynamodb:eu-central-1:123456789012:table/timelake-ledger"
      stream_arn = "arn:aws:dynamodb:eu-central-1:123456789012:table/timelake-ledger/stream/2026"
    }
  }
}

# So that each can be told from the others.
override_resource {
  target = module.function["planner"].aws_lambda_function.this
  values = { arn = "arn:aws:lambda:eu-central-1:123456789012:function:timelake-planner" }
}
override_resource {
  target = module.queue["work"].aws_sqs_queue.this
  values = { arn = "arn:aws:sqs:eu-central-1:123456789012:timelake-work", url = "https://sqs/timelake-work" }
}
override_resource {
  target = module.queue["land-close"].aws_sqs_queue.this
  values = { arn = "arn:aws:sqs:eu-central-1:123456789012:timelake-land-close", url = "https://sqs/timelake-land-close" }
}
override_resource {
  target = module.queue["close"].aws_sqs_queue.this
  values = { arn = "arn:aws:sqs:eu-central-1:123456789012:timelake-close", url = "https://sqs/timelake-close" }
}
override_resource {
  target = module.queue["refresh"].aws_sqs_queue.this
  values = { arn = "arn:aws:sqs:eu-central-1:123456789012:timelake-refresh", url = "https://sqs/timelake-refresh" }
}
override_resource {
  target = module.queue["work"].aws_sqs_queue.dead
  values = { arn = "arn:aws:sqs:eu-central-1:123456789012:timelake-work-dead" }
}
override_resource {
  target = module.queue["land-close"].aws_sqs_queue.dead
  values = { arn = "arn:aws:sqs:eu-central-1:123456789012:timelake-land-close-dead" }
}
override_resource {
  target = module.queue["close"].aws_sqs_queue.dead
  values = { arn = "arn:aws:sqs:eu-central-1:123456789012:timelake-close-dead" }
}
override_resource {
  target = module.queue["refresh"].aws_sqs_queue.dead
  values = { arn = "arn:aws:sqs:eu-central-1:123456789012:timelake-refresh-dead" }
}

variables {
  zips            = "./tests/zips"
  sources         = ["arn:aws:s3:::exports", "arn:aws:s3:::historian/site-a"]
  table_locations = ["s3://lake/live"]
}

run "roles" {
  assert {
    condition     = alltrue([for a in flatten([for f in module.function : f.statements[*].Action]) : !strcontains(a, "*")])
    error_message = "Actions are named one by one."
  }
  assert {
    condition     = !contains(flatten([for f in module.function : f.statements[*].Resource]), "*")
    error_message = "Resources are named."
  }
  assert {
    condition = [for name, f in module.function : name if anytrue([
      for a in flatten(f.statements[*].Action) : can(regex("Delete", a)) && a != "sqs:DeleteMessage"
    ])] == ["sweeper"]
    error_message = "Only the sweeper deletes."
  }
  assert {
    condition = jsonencode([for s in module.function["sweeper"].statements : s if anytrue([for a in s.Action : startswith(a, "s3:Delete")])]) == jsonencode([
      {
        Sid    = "DeleteOwnFiles"
        Effect = "Allow"
        Action = ["s3:DeleteObject"]
        Resource = concat(flatten([for t in ["${aws_s3_bucket.this[0].id}/warehouse", "lake/live"] : [
          "arn:aws:s3:::${t}/data/*-????????????-g*-u*-r*.parquet",
          "arn:aws:s3:::${t}/metadata/*-????????????-g*.avro",
          "arn:aws:s3:::${t}/*/data/*-????????????-g*-u*-r*.parquet",
          "arn:aws:s3:::${t}/*/metadata/*-????????????-g*.avro",
        ]]), ["arn:aws:s3:::${aws_s3_bucket.this[0].id}/jobs/*"])
      }
    ])
    error_message = "The sweeper deletes files that have a job in their name, and what is in the folders of jobs."
  }
  assert {
    condition = toset([for a in flatten(module.function["writer"].statements[*].Action) : a if startswith(a, "glue:")]) == toset([
      "glue:GetDatabase", "glue:GetTable", "glue:GetTables"
    ])
    error_message = "The writer commits nothing."
  }
  assert {
    condition = alltrue([for r in flatten([for s in module.function["writer"].statements : s.Resource if contains(s.Action, "s3:PutObject")]) :
    can(regex("/data/\\*-[?]{12}-g\\*-u\\*-r\\*\\.parquet$|/metadata/\\*-[?]{12}-g\\*-u\\*-r\\*\\.avro$|/jobs/\\*$", r))])
    error_message = "The writer writes over nobody's files."
  }
  assert {
    condition = alltrue([for r in flatten([for name in ["planner", "finalizer", "sweeper"] :
      [for s in module.function[name].statements : s.Resource if contains(s.Action, "s3:PutObject")]]) :
    can(regex("/metadata/\\*$|/jobs/\\*$", r))])
    error_message = "Who commits writes metadata, and no data."
  }
  assert {
    condition = alltrue([for s in module.function["refresher"].statements : alltrue([for r in s.Resource : can(regex("_changes(/\\*)?$|/jobs/\\*$|:catalog$|:database/iot$", r))])
    if length(setintersection(s.Action, ["s3:PutObject", "glue:CreateTable", "glue:UpdateTable"])) > 0])
    error_message = "The refresher writes feeds only."
  }
  assert {
    condition = alltrue([for name, f in module.function : contains(["planner", "writer"], name) == contains(flatten(f.statements[*].Resource), "arn:aws:s3:::exports/*")
    ])
    error_message = "Planner and writer read sources, the others have no need to."
  }
  assert {
    condition = alltrue([for s in flatten([for f in module.function : f.statements]) : jsonencode(s.Action) == jsonencode(["s3:GetObject"]) || !anytrue([for r in s.Resource : startswith(r, "arn:aws:s3:::exports/") || startswith(r, "arn:aws:s3:::historian/")
    ])])
    error_message = "Sources are only read."
  }
  assert {
    condition = alltrue([for f in module.function : jsonencode([for s in f.statements : s.Resource if s.Sid == "Ledger"]) == jsonencode([["arn:aws:dynamodb:eu-central-1:123456789012:table/timelake-ledger"]])
    ])
    error_message = "The ledger, and no other table."
  }
  assert {
    condition = { for name, f in module.function : name => alltrue([for a in flatten(f.statements[*].Action) : !contains(["dynamodb:DeleteItem", "dynamodb:BatchWriteItem", "dynamodb:Scan"], a)])
      && contains(flatten(f.statements[*].Action), "dynamodb:PutItem") == (name != "writer") } == {
      planner = true, writer = true, finalizer = true, refresher = true, sweeper = true
    }
    error_message = "Items of the ledger are not deleted, and the writer makes none."
  }
  assert {
    condition = jsonencode({ for name, f in module.function : name => sort([for r in flatten([for s in f.statements : s.Resource if s.Sid == "Send"]) : split("timelake-", r)[1]]) }) == jsonencode({
      planner   = ["close", "land-close", "work"]
      writer    = ["close", "land-close"]
      finalizer = ["close", "refresh", "work"]
      refresher = ["close"]
      sweeper   = ["close", "land-close", "refresh", "work"]
    })
    error_message = "Each sends to the queues of the steps that may follow it."
  }
}

run "what_calls_whom" {
  assert {
    condition = jsonencode({ for name, f in module.function : name => sort([for source in f.event_sources : split("timelake-", source.event_source_arn)[1]]) }) == jsonencode({
      planner   = ["land-close"]
      writer    = ["work"]
      finalizer = ["close"]
      refresher = ["refresh"]
      sweeper   = ["close-dead", "land-close-dead", "refresh-dead", "work-dead"]
    })
    error_message = "Each queue has its function, and all dead letters go to the sweeper."
  }
  assert {
    condition = alltrue(flatten([for f in module.function : [for source in f.event_sources :
    source.batch_size == 1 && contains(source.function_response_types, "ReportBatchItemFailures") && source.scaling_config[0].maximum_concurrency >= 2]]))
    error_message = "One message a call, failures told one by one, a bound on the calls at a time."
  }
  assert {
    condition     = [for name, f in module.function : name if anytrue([for s in f.statements : s.Sid == "Stream"])] == ["sweeper"]
    error_message = "The ledger's stream calls the sweeper."
  }
  assert {
    condition = { for name, rule in aws_cloudwatch_event_rule.sweeper : name => rule.schedule_expression } == {
      sweep = "rate(5 minutes)", collect = "rate(1 day)"
    } && alltrue([for target in aws_cloudwatch_event_target.sweeper : target.arn == module.function["sweeper"].arn])
    error_message = "The sweeper looks every five minutes, and collects every day."
  }
  assert {
    condition = alltrue([for f in module.function : f.environment == tomap({
      TIMELAKE_NAME                 = "timelake"
      TIMELAKE_LEDGER_TABLE         = "timelake-ledger"
      TIMELAKE_WORK_QUEUE_URL       = "https://sqs/timelake-work"
      TIMELAKE_LAND_CLOSE_QUEUE_URL = "https://sqs/timelake-land-close"
      TIMELAKE_CLOSE_QUEUE_URL      = "https://sqs/timelake-close"
      TIMELAKE_REFRESH_QUEUE_URL    = "https://sqs/timelake-refresh"
      TIMELAKE_WAREHOUSE            = "s3://${aws_s3_bucket.this[0].id}/warehouse"
      TIMELAKE_JOBS                 = "s3://${aws_s3_bucket.this[0].id}/jobs"
      TIMELAKE_WRITER_MEMORY_MB     = "1769"
      TIMELAKE_MEMORY_MB            = "1769"
    })])
    error_message = "All functions have the same environment, and nothing else."
  }
  assert {
    condition     = length(aws_cloudwatch_metric_alarm.dead_letters) == 4 && aws_cloudwatch_metric_alarm.sweeper_errors.dimensions["FunctionName"] == "timelake-sweeper"
    error_message = "Dead letters of each queue and failures of the sweeper raise an alarm."
  }
}

run "state_machine" {
  assert {
    condition = alltrue([for name in ["Plan", "Status"] : (
      jsondecode(aws_sfn_state_machine.backfill.definition).States[name].Arguments.FunctionName == "arn:aws:lambda:eu-central-1:123456789012:function:timelake-planner"
    )])
    error_message = "It parses, and calls the planner."
  }
  assert {
    condition = alltrue([for name, s in jsondecode(aws_sfn_state_machine.backfill.definition).States : alltrue([
      for next in concat([for k in ["Next", "Default"] : s[k] if can(s[k])], try(s.Choices[*].Next, []), try(s.Catch[*].Next, [])) :
      can(jsondecode(aws_sfn_state_machine.backfill.definition).States[next])
    ])])
    error_message = "Every state leads to one that is there."
  }
  assert {
    condition = alltrue([for name in ["Plan", "Status"] : contains(
    jsondecode(aws_sfn_state_machine.backfill.definition).States[name].Retry[0].ErrorEquals, "Lambda.TooManyRequestsException")])
    error_message = "Throttled calls are tried again."
  }
  assert {
    condition     = jsondecode(aws_iam_role_policy.state_machine.policy).Statement[0].Resource == ["arn:aws:lambda:eu-central-1:123456789012:function:timelake-planner"]
    error_message = "It may call the planner only."
  }
  assert {
    condition     = aws_sfn_state_machine.backfill.logging_configuration[0].include_execution_data == false
    error_message = "No request and no report in its log."
  }
  assert {
    condition     = length(aws_cloudwatch_event_rule.trigger) == 0
    error_message = "Nothing starts jobs unless it is asked for."
  }
  assert {
    condition     = strcontains(output.timelake_toml, "[lakes.timelake]\nregion = \"eu-central-1\"\nledger_table = ") && !strcontains(output.timelake_toml, "endpoint_url")
    error_message = "The section for timelake.toml is of this lake."
  }
  assert {
    condition     = strcontains(output.timelake_toml, "\nwriter_memory_mb = ${module.function["planner"].environment["TIMELAKE_WRITER_MEMORY_MB"]}\n")
    error_message = "A dry run plans for the memory that the planner plans for."
  }
}

run "bucket" {
  assert {
    condition = alltrue([
      aws_s3_bucket_public_access_block.this[0].block_public_acls, aws_s3_bucket_public_access_block.this[0].block_public_policy,
      aws_s3_bucket_public_access_block.this[0].ignore_public_acls, aws_s3_bucket_public_access_block.this[0].restrict_public_buckets,
    ])
    error_message = "Nothing in the bucket is public."
  }
  assert {
    condition     = one(one(aws_s3_bucket_server_side_encryption_configuration.this[0].rule).apply_server_side_encryption_by_default).sse_algorithm == "AES256"
    error_message = "The bucket encrypts."
  }
  assert {
    condition     = jsondecode(aws_s3_bucket_policy.this[0].policy).Statement[0].Condition.Bool["aws:SecureTransport"] == "false"
    error_message = "Requests over plain HTTP are refused."
  }
  assert {
    condition     = !aws_s3_bucket.this[0].force_destroy
    error_message = "Tables are not destroyed with their bucket."
  }
  assert {
    condition     = [for name, d in aws_glue_catalog_database.this : name] == ["iot"]
    error_message = "The database is made."
  }
}

run "everything_by_a_key" {
  variables {
    kms_key_arn = "arn:aws:kms:eu-central-1:123456789012:key/k"
  }
  assert {
    condition     = one(one(aws_s3_bucket_server_side_encryption_configuration.this[0].rule).apply_server_side_encryption_by_default).kms_master_key_id == var.kms_key_arn
    error_message = "The bucket encrypts by the key."
  }
  assert {
    condition     = alltrue([for f in module.function : anytrue([for s in f.statements : jsonencode(s.Resource) == jsonencode([var.kms_key_arn])])])
    error_message = "Each function may use the key."
  }
}

run "a_bucket_and_databases_that_are_there" {
  variables {
    bucket           = "ours"
    create_databases = false
    databases        = ["plant_1", "plant_2"]
  }
  assert {
    condition     = length(aws_s3_bucket.this) + length(aws_s3_bucket_policy.this) + length(aws_glue_catalog_database.this) == 0 && output.bucket == "ours"
    error_message = "They are left as they are."
  }
  assert {
    condition = contains(flatten([for s in module.function["finalizer"].statements : s.Resource if s.Sid == "Commit"]), "arn:aws:glue:eu-central-1:123456789012:table/plant_2/*"
    )
    error_message = "Tables of the databases can be committed to."
  }
}

run "a_trigger" {
  variables {
    trigger = {
      event_pattern = "{\"source\": [\"aws.s3\"]}"
      input         = "{\"request\": {\"table\": \"iot.sensor\", \"rows\": {\"from\": [\"s3://<bucket>/<key>\"]}}}"
      input_paths   = { bucket = "$.detail.bucket.name", key = "$.detail.object.key" }
    }
  }
  assert {
    condition     = aws_cloudwatch_event_target.trigger[0].arn == aws_sfn_state_machine.backfill.arn && aws_cloudwatch_event_target.trigger[0].input == null
    error_message = "Events start the state machine with what the template makes of them."
  }
  assert {
    condition = jsondecode(aws_iam_role_policy.trigger[0].policy).Statement == [{
      Sid = "Start", Effect = "Allow", Action = ["states:StartExecution"], Resource = [aws_sfn_state_machine.backfill.arn]
    }]
    error_message = "Its role may start this state machine only."
  }
}

run "variables_that_make_no_sense" {
  command = plan
  variables {
    name                 = "Time Lake"
    databases            = []
    table_locations      = ["s3://lake/*"]
    sources              = ["exports"]
    queue_retention_days = 14
    job_timeout_days     = 30
    concurrency          = { work = 1 }
    architecture         = "arm"
    trigger              = { schedule = "rate(1 day)", input = "{}" }
  }
  expect_failures = [
    var.name, var.databases, var.table_locations, var.sources, var.queue_retention_days, var.job_timeout_days, var.concurrency,
    var.architecture, var.trigger,
  ]
}
