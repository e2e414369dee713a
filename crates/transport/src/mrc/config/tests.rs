use super::*;
use crate::profile::PathEntry;

#[test]
fn settings_keep_the_model_of_the_network() {
    let profile = Arc::new(EvProfile::new(&[PathEntry { ev: openmrc_wire::Ev(1), port: 0 }]).unwrap());
    for (ordered, trims) in [(false, false), (false, true), (true, false), (true, true)] {
        let model = PathModel { ordered, ..PathModel::new(Span::from_micros(10), trims) };
        let paths = PathConfig::new(Arc::clone(&profile), model);
        let config = QpConfig::new(1, 2, paths, Arc::new(CcProfile::FixedWindow(1)));
        assert_eq!(Settings::from(&config).model(), model);
    }
}

#[test]
fn rotation_and_reserve_each_take_up_to_256_paths() {
    let profile = EvProfile::new(&[PathEntry { ev: openmrc_wire::Ev(1), port: 0 }]).unwrap();
    let paths = PathConfig::new(Arc::new(profile), PathModel::new(Span::from_micros(10), true));
    let check = |active, backup| {
        let paths = PathConfig { active, backup, ..paths.clone() };
        QpConfig::new(1, 2, paths, Arc::new(CcProfile::FixedWindow(1))).validate().map_err(|e| e.name)
    };
    assert_eq!(check(256, 256), Ok(()));
    assert_eq!(check(1, 0), Ok(()));
    assert_eq!(check(257, 0), Err("ev_active"));
    assert_eq!(check(0, 256), Err("ev_active"));
    assert_eq!(check(256, 257), Err("ev_backup"));
}

#[test]
fn every_attribute_is_taken_from_its_smallest_to_its_largest_value_and_refused_beyond() {
    type Set = fn(&mut QpConfig, u64);
    let cases: [(&str, Set, u64, u64); 13] = [
        ("qp_num", |c, v| c.local_qp = v as u32, 1, 0xFF_FFFF),
        ("dest_qp_num", |c, v| c.remote_qp = v as u32, 1, 0xFF_FFFF),
        ("path_mtu", |c, v| c.path_mtu = v as u16, 256, 8192),
        ("mpr", |c, v| c.requestor.mpr = v as u8, 1, 255),
        ("mpr_dest", |c, v| c.responder.mpr_dest = v as u8, 1, 255),
        ("max_wimm", |c, v| c.requestor.max_wimm = v as u16, 1, 16384),
        ("max_wimm_dest", |c, v| c.responder.max_wimm_dest = v as u16, 1, 16384),
        ("max_send_wr", |c, v| c.requestor.max_send_wr = v as usize, 1, 1 << 20),
        ("timeout", |c, v| c.requestor.timeout = Span(v), 1, u64::MAX),
        ("linear_cnt", |c, v| c.requestor.linear_cnt = v as u8, 0, 7),
        ("exp_cnt", |c, v| c.requestor.exp_cnt = v as u8, 0, 25),
        ("ev_burst", |c, v| c.paths.burst = v as u8, 1, 255),
        ("entropy_bits", |c, v| c.paths.entropy_bits = v as u8, 1, 32),
    ];
    let profile = EvProfile::new(&[PathEntry { ev: openmrc_wire::Ev(1), port: 0 }]).unwrap();
    let paths = PathConfig::new(Arc::new(profile), PathModel::new(Span::from_micros(10), true));
    let valid = QpConfig::new(1, 2, paths, Arc::new(CcProfile::FixedWindow(1)));
    for (name, set, smallest, largest) in cases {
        let check = |value| {
            let mut config = valid.clone();
            set(&mut config, value);
            config.validate().map_err(|error| (error.name, error.value))
        };
        assert_eq!((check(smallest), check(largest)), (Ok(()), Ok(())), "{name}");
        if smallest > 0 {
            assert_eq!(check(smallest - 1), Err((name, smallest - 1)));
        }
        // The others fill their type.
        if ![255, u64::MAX].contains(&largest) {
            assert_eq!(check(largest + 1), Err((name, largest + 1)));
        }
    }
}
