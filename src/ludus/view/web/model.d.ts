// Made by scripts/update-web-types of src/ludus/view/model.py, which says what each field means. Do not edit.

export interface ActionReply {
  ok: boolean;
  text: string;
  run: string;
}

export interface ActivityReport {
  phases: PhaseCount[];
  ended: number;
  lost: Record<string, number>;
  quiet: number;
  since_end: number;
}

export interface BlamedLine {
  number: number;
  text: string;
  html: string;
  origin: string;
  step: number;
  line: string;
  reason: string;
  status: string;
  situation: string;
  works: number | null;
  worth: number | null;
  interval: Interval | null;
  pays: number | null;
  tokens: number;
  evidence_for: RolloutRef[];
  evidence_against: RolloutRef[];
  suspected: RolloutRef[];
  proposed_from: RolloutRef[];
  more: number;
  rollouts: number;
  passed: number;
  history: LineFate[];
  by: string;
}

export interface BudgetLine {
  role: string;
  calls: number;
  failed: number;
  retries: number;
  seconds: number;
  usage: Usage;
  limit_dollars: number | null;
  limit_tokens: number | null;
  limit_calls: number | null;
}

export interface ChangeEvent {
  runs: string[];
  what: string[];
  stored: Record<string, number>;
}

export interface ChartCurve {
  name: string;
  label: string;
  x_label: string;
  unit: string;
  group: string;
  style: string;
  points: ChartPoint[];
}

export interface ChartPoint {
  x: number;
  y: number;
  low: number | null;
  high: number | null;
  label: string;
  kind: string;
  ref: string;
}

export interface CommandPreview {
  line: string;
  words: string[];
  problem: string;
}

export interface ComparedRun {
  name: string;
  model: string;
  mean: number | null;
  interval: Interval | null;
  tasks: number;
  rollouts: number;
  excluded: number;
  suspects: number;
  mean_without_suspects: number | null;
  usage: Usage;
  median_seconds: number | null;
  skill_loads: SkillLoads;
}

export interface CostPerPoint {
  run: string;
  dollars: number;
  tokens: number;
  rollouts: number;
  score: number | null;
  dollars_per_rollout: number | null;
  dollars_per_point: number | null;
  tokens_per_point: number | null;
}

export interface DiffRow {
  kind: string;
  left: string;
  right: string;
  left_number: number;
  right_number: number;
  left_marks: [number, number][];
  right_marks: [number, number][];
  count: number;
}

export interface DurationShare {
  low: number;
  high: number;
  groups: number;
  trained: number;
}

export interface EnvironmentCard {
  name: string;
  runs: string[];
  tasks: number;
  rollouts: number;
  scored: number;
  passed: number;
  rate: number | null;
  summary: string;
  options: Record<string, any>;
  pending: number;
}

export interface EnvironmentPage {
  rows: EnvironmentCard[];
  total: number;
  next: string;
}

export interface EnvironmentTask {
  task: string;
  split: string;
  kind: string;
  runs: number;
  rollouts: number;
  scored: number;
  passed: number;
  rate: number | null;
  flaky: boolean;
  best_run: string;
  has_reference: boolean | null;
  prompt: string;
  example_run: string;
  example: number | null;
}

export interface EnvironmentTaskPage {
  env: string;
  rows: EnvironmentTask[];
  total: number;
  next: string;
  pending: number;
}

export interface FailureLedger {
  rollouts: number;
  lost: number;
  causes: Record<string, number>;
  broken: number;
  mean: number | null;
  lowest: number | null;
  highest: number | null;
}

export interface FormField {
  name: string;
  label: string;
  section: string;
  kind: string;
  default: string;
  choices: string[];
  help: string;
  required: boolean;
  common: boolean;
}

export interface FormList {
  commands: Record<string, string>;
}

export interface GridCell {
  score: number | null;
  passed: number;
  scored: number;
  rollouts: number;
  rollout: number | null;
}

export interface GridRow {
  task: string;
  split: string;
  kind: string;
  cells: GridCell[];
  spread: number;
  same: boolean;
}

export interface GroupPage {
  rows: WeightGroup[];
  total: number;
  next: string;
  indexing: number;
}

export interface Interval {
  low: number;
  high: number;
}

export interface KindDifference {
  kind: string;
  tasks: number;
  difference: number;
  interval: Interval | null;
}

export interface LeftFile {
  path: string;
  size: number;
  mode: string;
  link: string;
  removed: boolean;
  ref: string;
}

export interface LineFate {
  step: number;
  change: string;
  reason: string;
  by: string;
}

export interface LogTail {
  pid: number;
  line: string;
  running: boolean;
  code: number | null;
  text: string;
}

export interface PairComparison {
  first: string;
  second: string;
  tasks: number;
  difference: number | null;
  interval: Interval | null;
  won: number;
  lost: number;
  tied: number;
  won_tasks: TaskDifference[];
  lost_tasks: TaskDifference[];
  kinds: KindDifference[];
  difference_without_suspects: number | null;
  verdict: string;
  changed: number;
  usage_first: Usage;
  usage_second: Usage;
}

export interface PassAt {
  k: number;
  value: number;
  tasks: number;
}

export interface PhaseCount {
  phase: string;
  count: number;
  oldest: number;
  who: string;
  node?: string;
}

export interface PhaseShare {
  phase: string;
  seconds: number;
}

export interface RecordedSettings {
  run: string;
  settings: Record<string, any>;
  code: Record<string, string>;
  changes: string[];
}

export interface RefusedLine {
  text: string;
  step: number;
  status: string;
  reason: string;
  line: string;
  source: string;
  worth: number | null;
  interval: Interval | null;
  evidence_for: RolloutRef[];
  evidence_against: RolloutRef[];
  by: string;
}

export interface RolloutBranch {
  first: number;
  last: number;
  after: number;
  label: string;
}

export interface RolloutCard {
  id: number;
  key: string;
  task: string;
  kind: string;
  split: string;
  replicate: number;
  attempt: number;
  score: number | null;
  passed: boolean | null;
  soft: number | null;
  stop: string;
  failure: string;
  turns: number;
  tool_calls: number;
  tool_errors: number;
  prompt_tokens: number;
  completion_tokens: number;
  dollars: number;
  seconds: number;
  began: number;
  model: string;
  policy: string;
  skill: string;
  suspect: boolean;
  exact: boolean;
  size: number;
  part: string;
  role: string;
}

export interface RolloutDetail {
  run: string;
  row: RolloutCard;
  prompt: TextPart;
  opening: ShownMessage[];
  page: TurnPage;
  score: ShownScore | null;
  failure: ShownFailure | null;
  advantage: number | null;
  group: RolloutCard[];
  before: number | null;
  after: number | null;
  place: number;
  of: number;
  waterfall: WaterfallSpan[];
  phases: PhaseShare[];
  branches: RolloutBranch[];
  files: LeftFile[];
  files_note: string;
  provenance: Record<string, any>;
  facts: Record<string, any>;
  has_tokens: boolean;
  has_trainer_logprobs: boolean;
  skill: string;
  commands: Record<string, string>;
}

export interface RolloutPage {
  rows: RolloutCard[];
  total: number;
  next: string;
  indexing: number;
  choices: Record<string, Record<string, number>>;
}

export interface RolloutRef {
  step: number;
  task: string;
  id: number | null;
}

export interface RunCard {
  id: string;
  path: string;
  kind: string;
  state: string;
  message: string;
  env: string;
  model: string;
  rollouts: number;
  scored: number;
  planned: number;
  score: number | null;
  interval: Interval | null;
  measure: string;
  mean: number | null;
  suspects: number;
  mean_without_suspects: number | null;
  dollars: number;
  tokens: number;
  budget_dollars: number | null;
  started: number;
  ended: number;
  version: string;
  parent: string;
  tags: string[];
  note: string;
  pending: boolean;
}

export interface RunEvent {
  time: number;
  kind: "control" | "ended" | "quiet" | "review";
  text: string;
  who?: string;
  facts?: Record<string, any>;
}

export interface RunForm {
  command: string;
  summary: string;
  fields: FormField[];
}

export interface RunOverview {
  card: RunCard;
  command: string;
  tasks: number;
  flaky: number;
  passed: number;
  pass_at: PassAt[];
  mean_with_zeros: number | null;
  mean_without_suspects: number | null;
  warning: string;
  claim: string;
  kinds: Record<string, ScoreCard>;
  curves: ChartCurve[];
  failures: FailureLedger;
  reasons: string[];
  stops: Record<string, number>;
  tools: ToolUse[];
  turns: Spread | null;
  seconds: Spread | null;
  phases: PhaseShare[];
  costs: BudgetLine[];
  live: RunStatus | null;
  live_problem: string;
  events: RunEvent[];
  recent: RolloutCard[];
  has_skill: boolean;
  has_weights: boolean;
  has_tokens: boolean;
  can_control: boolean;
  indexing: number;
  stored: number;
}

export interface RunPage {
  rows: RunCard[];
  total: number;
  next: string;
  pending: number;
  choices: Record<string, Record<string, number>>;
}

export interface RunStatus {
  run: string;
  kind: string;
  pid: number;
  paused: boolean;
  stopping: boolean;
  reason: string;
  concurrency: number;
  stored: number;
  planned: number;
  requeued: number;
  activity: ActivityReport;
}

export interface ScoreCard {
  tasks: number;
  rollouts: number;
  scored: number;
  passed: number;
  mean: number | null;
  interval: Interval | null;
}

export interface ServerQueue {
  url: string;
  step: number;
  queued: number;
  environments: Record<string, any>[];
  facts: Record<string, any>;
}

export interface SettingDifference {
  key: string;
  values: string[];
}

export interface ShownCall {
  id: string;
  name: string;
  arguments: TextPart;
  result: TextPart | null;
  error: string;
  seconds: number;
  spilled: string;
  images: ShownImage[];
}

export interface ShownFailure {
  boundary: string;
  message: string;
  retryable: boolean;
}

export interface ShownImage {
  src: string;
  note: string;
}

export interface ShownMessage {
  role: string;
  text: TextPart;
  images: ShownImage[];
}

export interface ShownScore {
  value: number;
  passed: boolean;
  soft: number;
  feedback: TextPart;
  parts: Record<string, number>;
  suspect: string[];
}

export interface ShownTurn {
  number: number;
  reasoning: TextPart | null;
  text: TextPart;
  calls: ShownCall[];
  notices: ShownMessage[];
  images: ShownImage[];
  finish: string;
  stop: string;
  model: string;
  usage: Usage;
  seconds: number;
  start: number;
  model_seconds: number;
  tool_seconds: number;
  guided: boolean;
  branch: number | null;
  sampled: number;
  ids: number;
}

export interface SkillBlame {
  version: SkillVersion;
  lines: BlamedLine[];
  refused: RefusedLine[];
  refused_total: number;
  can_review: boolean;
  why_not: string;
}

export interface SkillDiff {
  left: SkillVersion;
  right: SkillVersion;
  rows: DiffRow[];
  added: number;
  removed: number;
}

export interface SkillLoads {
  rollouts: number;
  loaded: number;
  unknown: number;
  mean_loaded: number | null;
  mean_other: number | null;
  files: Record<string, number>;
  scripts: Record<string, number>;
}

export interface SkillText {
  version: SkillVersion;
  text: string;
  html: string;
}

export interface SkillVersion {
  hash: string;
  origin: string;
  step: number;
  decision: string;
  score: number | null;
  interval: Interval | null;
  characters: number;
  lines: number;
  tokens: number;
  added: number;
  removed: number;
  by: string;
  reason: string;
}

export interface SkillVersions {
  versions: SkillVersion[];
  total: number;
  shipped: string;
  initial: string;
  can_review: boolean;
  why_not: string;
}

export interface Spread {
  total: number;
  mean: number;
  median: number;
  p95: number;
  most: number;
}

export interface StartedCommand {
  line: string;
  pid: number;
  log: string;
  run: string;
}

export interface TaskCard {
  task: string;
  kind: string;
  split: string;
  rollouts: number;
  scored: number;
  passed: number;
  rate: number | null;
  mean: number | null;
  flaky: boolean;
  failed: number;
  suspects: number;
  turns: number;
  seconds: number;
  tokens: number;
  dollars: number;
  tool_errors: number;
}

export interface TaskDifference {
  task: string;
  split: string;
  first: number;
  second: number;
}

export interface TaskPage {
  rows: TaskCard[];
  total: number;
  next: string;
  indexing: number;
}

export interface TextPart {
  text: string;
  html: string;
  form: string;
  size: number;
  cut: boolean;
  ref: string;
}

export interface TextPiece {
  ref: string;
  start: number;
  end: number;
  size: number;
  text: string;
  html: string;
  form: string;
}

export interface TokenPage {
  start: number;
  total: number;
  next: number;
  ids: number[];
  texts: string[];
  sampled: boolean[];
  logprobs: (number | null)[];
  trainer_logprobs: (number | null)[];
  turns: number[];
  advantage: number | null;
  note: string;
}

export interface ToolUse {
  tool: string;
  calls: number;
  errors: number;
}

export interface TurnPage {
  turns: ShownTurn[];
  total: number;
  first: number;
  next: number;
}

export interface Usage {
  prompt_tokens?: number;
  completion_tokens?: number;
  cached_tokens?: number;
  dollars?: number;
}

export interface Versus {
  runs: ComparedRun[];
  cards: RunCard[];
  pairs: PairComparison[];
  grid: GridRow[];
  total: number;
  next: string;
  settings: SettingDifference[];
  curves: Record<string, ChartCurve[]>;
  costs: CostPerPoint[];
  problems: string[];
}

export interface ViewError {
  error: string;
}

export interface ViewSession {
  schema: number;
  version: string;
  title: string;
  read_only: boolean;
  static: boolean;
  may_act: boolean;
  action_token: string;
  why_not: string;
  single: string;
  now: number;
}

export interface WaterfallSpan {
  turn: number;
  phase: string;
  label: string;
  start: number;
  seconds: number;
  exact: boolean;
}

export interface WeightGroup {
  number: number | null;
  task: string;
  step: number | null;
  version: number | null;
  staleness: number | null;
  dropped: string;
  scores: (number | null)[];
  advantages: (number | null)[];
  spread: number;
  seconds: number;
  rollouts: number[];
  model: string;
  role: string;
}

export interface WeightStep {
  step: number;
  version: number;
  reward: number | null;
  passed: number | null;
  length: number | null;
  rows: number;
  rollouts: number;
  failed: number;
  suspects: number;
  groups: number;
  dropped: Record<string, number>;
  staleness: number;
  stalest: number;
  trained_fast: number | null;
  trained_slow: number | null;
  loss: number | null;
  kl: number | null;
  reference_kl: number | null;
  entropy: number | null;
  clipped: number | null;
  ratio: number | null;
  gradient: number | null;
  held_out: number | null;
  held_out_interval: Interval | null;
  seconds: Record<string, number>;
}

export interface WeightsPage {
  steps: WeightStep[];
  total: number;
  next: string;
  curves: ChartCurve[];
  planned: number;
  trained_by_duration: DurationShare[];
  server: ServerQueue | null;
  server_problem: string;
}
