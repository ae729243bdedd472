# What each function may do. Writing its log and receiving from its own queues is added by modules/function.

locals {
  # Files of jobs hold the job's id, generation, unit, round and attempt in their names (the last part of an id is 12 digits):
  #   data/<partition>/<job>-g1-u00007-r0-<attempt>-003.parquet    metadata/<job>-g1-u00007-r0-<attempt>.avro
  # and what commits write, generation and a random number: metadata/<job>-g1-pub-....avro, metadata/snap-<id>-0-<job>-g1-....avro
  unit_files = ["data/*-????????????-g*-u*-r*.parquet", "metadata/*-????????????-g*-u*-r*.avro"]
  own_files  = ["data/*-????????????-g*-u*-r*.parquet", "metadata/*-????????????-g*.avro"]

  # Places with tables in them, as ARNs: the warehouse first.
  tables = concat(["${local.bucket_arn}/warehouse"], [for l in var.table_locations : replace(l, "s3://", "arn:${local.partition}:s3:::")])
  # `<place>/data/...` is a table of that place itself, `<place>/*/data/...` one below.
  folders          = flatten([for t in local.tables : [t, "${t}/*"]])
  table_buckets    = distinct([for t in local.tables : split("/", t)[0]])
  source_buckets   = distinct([for s in var.sources : split("/", s)[0]])
  unit_file_arns   = [for pair in setproduct(local.folders, local.unit_files) : join("/", pair)]
  own_file_arns    = [for pair in setproduct(local.folders, local.own_files) : join("/", pair)]
  metadata_arns    = [for f in local.folders : "${f}/metadata/*"]
  table_file_arns  = [for t in local.tables : "${t}/*"]
  source_file_arns = [for s in var.sources : "${s}/*"]
  job_files_arn    = "${local.bucket_arn}/jobs/*"

  # An upload in parts that failed is taken back by who began it.
  put = ["s3:PutObject", "s3:AbortMultipartUpload"]

  glue           = "arn:${local.partition}:glue:${local.region}:${local.account}"
  glue_databases = concat(["${local.glue}:catalog"], [for d in sort(var.databases) : "${local.glue}:database/${d}"])
  glue_tables    = concat(local.glue_databases, [for d in sort(var.databases) : "${local.glue}:table/${d}/*"])
  # The feed of changed ranges of TABLE is TABLE_changes, and lies in the warehouse.
  glue_feeds = concat(local.glue_databases, [for d in sort(var.databases) : "${local.glue}:table/${d}/*_changes"])
  feed_files = ["${local.bucket_arn}/warehouse/*_changes/*"]

  # Listing is of whole buckets: without it a missing object is answered like a forbidden one, whatever its prefix.
  read_sources = length(var.sources) == 0 ? [] : [
    { sid = "ReadSources", actions = ["s3:GetObject"], resources = local.source_file_arns },
    { sid = "ListSources", actions = ["s3:ListBucket"], resources = local.source_buckets },
  ]
  read_lake = [
    { sid = "ReadLake", actions = ["s3:GetObject"], resources = concat(local.table_file_arns, [local.job_files_arn]) },
    { sid = "ListLake", actions = ["s3:ListBucket"], resources = local.table_buckets },
  ]
  read_catalog = [
    { sid = "ReadCatalog", actions = ["glue:GetDatabase", "glue:GetTable", "glue:GetTables"], resources = local.glue_tables },
  ]
  commit = [
    { sid = "WriteMetadata", actions = local.put, resources = concat(local.metadata_arns, [local.job_files_arn]) },
    { sid = "Commit", actions = ["glue:UpdateTable"], resources = local.glue_tables },
  ]

  # A transaction needs the right to each of its parts, and no further one. Items are never deleted; only who opens jobs and rounds and
  # moves groups on makes or replaces any.
  ledger_units = ["dynamodb:BatchGetItem", "dynamodb:GetItem", "dynamodb:Query", "dynamodb:UpdateItem"]
  ledger       = [{ sid = "Ledger", actions = concat(local.ledger_units, ["dynamodb:PutItem"]), resources = [module.ledger.arn] }]

  send_to = { for function, queues in {
    planner   = ["work", "land-close", "close"]
    writer    = ["land-close", "close"]
    finalizer = ["work", "close", "refresh"]
    refresher = ["close"]
    sweeper   = ["work", "land-close", "close", "refresh"]
    } : function => [{
      sid       = "Send"
      actions   = ["sqs:SendMessage"]
      resources = [for q in queues : module.queue[q].arn]
  }] }

  statements = {
    planner = concat(local.read_sources, local.read_lake, local.read_catalog, local.commit, local.ledger, local.send_to.planner, [
      { sid = "CreateTables", actions = ["glue:CreateTable"], resources = local.glue_tables },
    ])

    # Adds files of its units and nothing else: no commit, and no file of anybody else is written over.
    writer = concat(local.read_sources, local.read_lake, local.read_catalog, local.send_to.writer, [
      { sid = "Ledger", actions = local.ledger_units, resources = [module.ledger.arn] },
      { sid = "WriteUnits", actions = local.put, resources = concat(local.unit_file_arns, [local.job_files_arn]) },
    ])

    finalizer = concat(local.read_lake, local.read_catalog, local.commit, local.ledger, local.send_to.finalizer)

    refresher = concat(local.read_lake, local.read_catalog, local.ledger, local.send_to.refresher, [
      { sid = "WriteFeeds", actions = local.put, resources = concat(local.feed_files, [local.job_files_arn]) },
      { sid = "CommitFeeds", actions = ["glue:CreateTable", "glue:UpdateTable"], resources = local.glue_feeds },
    ])

    # The only one that deletes: files of jobs, by their names, and what is in the folders of jobs.
    sweeper = concat(local.read_lake, local.read_catalog, local.commit, local.ledger, local.send_to.sweeper, [
      { sid = "DeleteOwnFiles", actions = ["s3:DeleteObject"], resources = concat(local.own_file_arns, [local.job_files_arn]) },
      { sid = "CountMessages", actions = ["sqs:GetQueueAttributes"], resources = [for q in sort(keys(local.queues)) : module.queue[q].arn] },
    ])
  }
}
